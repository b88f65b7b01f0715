"""Clients of a lock at an exact key, as other programs have them. Each line printed is one stay inside: its first and last moment,
in nanoseconds of the machine's monotonic clock.

    python3 clients.py WAY PORT KEY ROUNDS
"""

import random
import sys
import time
import uuid

import redis
import redis.exceptions

COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""
TTL_MS = 30_000


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def stay(seconds=0.001):
    acquired = now()
    time.sleep(seconds)
    return acquired, now()


def tell(acquired, ended):
    print(acquired, ended, flush=True)


def wait_until(server, key):
    while not server.exists(key):
        time.sleep(0.005)


def redis_py(server, key, rounds):
    for _ in range(rounds):
        lock = server.lock(key, timeout=TTL_MS / 1000, sleep=0.002)
        if not lock.acquire(blocking=True):
            sys.exit("it gave up")
        times = stay()
        lock.release()
        tell(*times)
        time.sleep(random.random() * 0.004)


def redis_py_try(server, key, rounds):
    for _ in range(rounds):
        lock = server.lock(key, timeout=TTL_MS / 1000)
        if lock.acquire(blocking=False):
            times = stay()
            lock.release()
            tell(*times)


def redis_py_hold(server, key, rounds):
    lock = server.lock(key, timeout=TTL_MS / 1000)
    if lock.acquire(blocking=False):
        acquired = now()
        wait_until(server, "let go")
        ended = now()
        lock.release()
        tell(acquired, ended)


def redis_py_expire(server, key, rounds):
    lock = server.lock(key, timeout=0.3)
    if not lock.acquire(blocking=False):
        sys.exit("it is not free")
    acquired = now()
    wait_until(server, "let go")
    try:
        lock.release()
    except redis.exceptions.LockNotOwnedError:
        return
    tell(acquired, now())


def plain(server, key, rounds, tries=None):
    release = server.register_script(COMPARE_AND_DELETE)
    for _ in range(rounds):
        token = str(uuid.uuid4())
        while not server.set(key, token, nx=True, px=TTL_MS):
            if tries is not None:
                break
            time.sleep(0.002)
        else:
            times = stay()
            if release(keys=[key], args=[token]) != 1:
                sys.exit("it was not ours any more")
            tell(*times)
            time.sleep(random.random() * 0.004)


def plain_try(server, key, rounds):
    plain(server, key, rounds, tries=1)


WAYS = {
    "redis-py": redis_py,
    "redis-py-try": redis_py_try,
    "redis-py-hold": redis_py_hold,
    "redis-py-expire": redis_py_expire,
    "plain": plain,
    "plain-try": plain_try,
}

if __name__ == "__main__":
    way, port, key, rounds = sys.argv[1:]
    WAYS[way](redis.Redis(port=int(port)), key, int(rounds))
