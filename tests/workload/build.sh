#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: build.sh OUT    Compiles waiter.c to the file OUT, which should be named "waiter" (its comm).
#
# Frame pointers and no tail calls keep its stacks whole, -z now keeps the linker out of its waits.
set -eu
exec "${CC:-gcc}" -O2 -g -Wall -Wextra -fno-omit-frame-pointer -fno-optimize-sibling-calls \
    -pthread -Wl,-z,now -o "$1" "$(dirname "$0")/waiter.c"
