# SPDX-License-Identifier: Apache-2.0
"""Two threads that wait for each other's lock."""

import threading
import time

FIRST, SECOND = threading.Lock(), threading.Lock()


def take(one: threading.Lock, other: threading.Lock) -> None:
    with one:
        time.sleep(0.2)
        with other:
            pass


threading.Thread(target=take, args=(FIRST, SECOND)).start()
threading.Thread(target=take, args=(SECOND, FIRST)).start()
