-- An exact key's end has no quick way, which would have begun something: whether it has released.
local released = false
