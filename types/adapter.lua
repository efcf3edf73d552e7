---@meta ane
-- Types of LoRA adapters. See types/ane.lua.

--- What `adapters` lists: a path, an adapter, or one of them with a scale.
---@alias ane.adapter_choice string|ane.adapter|{ path?: string, adapter?: ane.adapter, scale?: number }

--- A LoRA adapter of a model.
---@class ane.adapter
---@field path string
---@field scale number factor of all that it adds
---@field rank integer the largest of its ranks
---@field modules integer weights that it changes
---@field bytes integer of memory
---@field sha256 string of its files
---@field closed boolean
local adapter = {}

--- The same adapter with another scale.
---@param scale number
---@return ane.adapter
function adapter:with(scale) end

--- Frees it as soon as no session carries it.
function adapter:close() end
