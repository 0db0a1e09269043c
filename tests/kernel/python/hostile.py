# SPDX-License-Identifier: Apache-2.0
"""Lie to readers of this process' memory (CPython 3.11): a frame that is its own caller, and a function whose name is
said to be 2^60 characters long; then a list of threads that leads nowhere."""

import ctypes
import os
import sys
import threading
import time

F_FRAME, PREVIOUS, LENGTH = 24, 48, 16


def sleeper() -> None:
    time.sleep(0.1)


def nameless() -> None:
    time.sleep(0.05)


def word(address: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(address)


time.sleep(0.4)
thread = threading.Thread(target=sleeper)
sys.setswitchinterval(10)  # nobody else runs while this thread does not wait
thread.start()
assert thread.ident
time.sleep(0.02)
frame = word(id(sys._current_frames()[thread.ident]) + F_FRAME).value
previous = word(frame + PREVIOUS).value
word(frame + PREVIOUS).value = frame
end = time.monotonic() + 0.3
while time.monotonic() < end:
    pass
word(frame + PREVIOUS).value = previous
thread.join()
length = word(id(nameless.__code__.co_qualname) + LENGTH)
length.value, before = 2**60, length.value
nameless()
length.value = before
heads = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")) + 40
word(heads).value = 0x1234
threading.Thread(target=nameless).start()
time.sleep(0.2)
os._exit(0)
