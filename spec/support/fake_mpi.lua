--- A module ane.mpi for specs, which write and read its messages.
-- Usage: `local mpi = fake_mpi(); table.insert(mpi.inbox, { 1, "bytes" })`
-- @return module: sent (list of {rank, bytes}), inbox (the same, to be given by poll), dead (set of processes),
-- finished (true once finish was called)

return function()
  local mpi = { sent = {}, inbox = {}, dead = {} }
  function mpi.send(rank, bytes, more)
    table.insert(mpi.sent, { rank, bytes .. (more or "") })
    return true
  end
  function mpi.poll(_, head)
    local one = table.remove(mpi.inbox, 1)
    if not one then return end
    if head then return one[1], one[2]:sub(1, head), one[2]:sub(head + 1) end
    return one[1], one[2]
  end
  function mpi.process() return 1 end
  function mpi.alive(pid) return not mpi.dead[pid] end
  function mpi.finish() mpi.finished = true end
  function mpi.share() return nil, "a fake shares no memory", "unsupported" end
  return mpi
end
