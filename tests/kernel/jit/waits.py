# SPDX-License-Identifier: Apache-2.0
"""Sleeps 100 times 5 ms below functions whose names a profile should show, in two threads."""

import threading
import time


def wait_for_disk() -> None:
    for _ in range(2):
        time.sleep(0.005)


def handle_request(number: int) -> int:
    wait_for_disk()
    return number


def main() -> int:
    return sum(map(handle_request, range(50)))


other = threading.Thread(target=main)
other.start()
main()
other.join()
