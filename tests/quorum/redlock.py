"""A plain Redlock client, after the Redis documentation: SET NX PX on all servers, compare and delete. Each line printed is one stay
inside: its first and last moment, in nanoseconds of the machine's monotonic clock.

    python3 redlock.py KEY ROUNDS PORT...
"""

import random
import sys
import time
import uuid

import redis

COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""
TTL_MS = 30_000


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def main(key, rounds, ports):
    servers = [redis.Redis(port=int(port), socket_timeout=2) for port in ports]
    releases = [server.register_script(COMPARE_AND_DELETE) for server in servers]

    def release(token):
        return sum(release(keys=[key], args=[token]) for release in releases)

    for _ in range(rounds):
        while True:
            token = str(uuid.uuid4())
            begun = time.monotonic()
            held = sum(bool(server.set(key, token, nx=True, px=TTL_MS)) for server in servers)
            if held > len(servers) // 2 and time.monotonic() - begun < TTL_MS / 1000 * 0.99:
                break
            release(token)
            time.sleep(random.random() * 0.01)
        acquired = now()
        time.sleep(0.001)
        ended = now()
        if release(token) <= len(servers) // 2:
            sys.exit("it was not ours any more")
        print(acquired, ended, flush=True)
        time.sleep(random.random() * 0.004)


main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
