-- lease/swap: release what one token holds, and ask by another: lease/end and lease/acquire one after the other, at one gate and in
-- one call. For gates of which permits are kept, where a process ends one because others wait, and needs the next: it has no quick
-- way, since those answer where nobody waits.
--
-- KEYS[1]  main     string or zset  who holds
-- KEYS[2]  queue    zset            token -> ticket
-- KEYS[3]  records  hash            S, L, K, token -> record
-- KEYS[4]  roster   zset            who is alive, suspect, ended
-- KEYS[5]  clock    string          the number drawn last under this hash tag
-- ARGV[1]  token      string   that ends, and its two further arguments as lease/end has them
-- ARGV[2]  latest_ms  integer
-- ARGV[3]  channel    string
-- ARGV[4]  token      string   that asks, and its three further arguments as lease/acquire has them
-- ARGV[5]  lease_ms   integer
-- ARGV[6]  latest_us  integer
-- ARGV[7]  terms      string
--
-- Returns  {ended, asked}  what lease/end and lease/acquire return, each whole; an error in place of the second if that alone failed
-- Writes   what they write.

local ending = {ARGV[1], ARGV[2], ARGV[3]}
local asking = {ARGV[4], ARGV[5], ARGV[6], ARGV[7]}

local ended = lease_end(ending)
-- By pcall, since nothing undoes the end: an error of the whole call would say that it did not run.
local ran, asked = pcall(lease_acquire, asking)
if not ran then
  -- Worded as a server up to 6.2 words what failed in a script, which is known to whoever reads it. By which of both a later one
  -- says it depends on the version.
  local text = type(asked) == "table" and asked.err or asked
  asked = {err = "ERR Error running script: " .. string.gsub(text, "^ERR ", "")}
end
return {ended, asked}
