-- An exact key's end has no quick way, which would have begun something: a release, and the clearing of a place.
local released, cleared = false, 0
