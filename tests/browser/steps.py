"""Memory in steps: a block that stays while nothing happens, and one that is gone within microseconds."""

import time

time.sleep(0.2)
stays = bytearray(20_000_000)
time.sleep(1)
bytes(60_000_000)
time.sleep(1)
del stays
time.sleep(0.5)
