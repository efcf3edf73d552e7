---@meta ane
-- Types of LoRA adapters. See types/ane.lua.

--- An entry of the option `adapters`: a path, an adapter, or one of them with a scale.
---@alias ane.adapter_choice string|ane.adapter|{ path?: string, adapter?: ane.adapter, scale?: number }

--- A LoRA adapter of a model.
---@class ane.adapter
---@field path string
---@field scale number factor of the product that the adapter adds
---@field rank integer maximum rank of its matrices
---@field modules integer number of weights that it changes
---@field bytes integer bytes of memory
---@field sha256 string hash of its files
---@field closed boolean
local adapter = {}

--- Returns the same adapter with another scale. It is closed when the original is.
---@param scale number
---@return ane.adapter
function adapter:with(scale) end

--- Closes the adapter. Its memory is freed when no session and no other adapter of the same path uses it.
function adapter:close() end
