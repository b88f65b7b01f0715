-- How long things last on the server when nobody speaks for them.

-- What a pushed grant or a heartbeat is worth, in ms. The client's `CLAIM` says the same.
local CLAIM_MS = 3000
local CLAIM = "3000"
-- What was said a moment ago, a heartbeat, need not be said again.
local SAID_MS = 300
-- How long the side keys outlive their last use, in ms.
local KEEP_MS = 60000
local KEEP = "60000"
-- How long a waiter without a deadline of its own may stand in the queue, in ms. The client's `LONGEST_WAIT` says the same.
local WAIT_MS = 86400000
