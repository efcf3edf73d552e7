--- `keys(t)`: the keys of a table as a list, in order; all of them strings, or all of them numbers.
return function(t)
  local list = {}
  for key in pairs(t) do list[#list + 1] = key end
  table.sort(list)
  return list
end
