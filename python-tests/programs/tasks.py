"""asyncio: tasks that wait for each other, an executor, and a subprocess."""

import asyncio
import sys

kept = []


def keep():
    return bytearray(30_000)


def keep_more():
    return bytearray(50_000)


async def worker(number, gate):
    await gate.wait()
    for _ in range(5):
        kept.append(keep())
        await asyncio.sleep(0)
    return number


def in_executor():
    kept.append(keep_more())


async def main():
    gate = asyncio.Event()
    tasks = [asyncio.create_task(worker(number, gate)) for number in range(40)]
    await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(None, in_executor) for _ in range(20)))
    gate.set()
    print(sum(await asyncio.gather(*tasks)))
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('child')", stdout=asyncio.subprocess.PIPE)
    print((await child.communicate())[0].decode().strip(), child.returncode)


asyncio.run(main())
