# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# $1: the outermost directory that is closed to others, $2: the checkout, $3: the shell line.
set -e
door=$(mktemp -d)
mount --bind "$2" "$door"
mount -t tmpfs -o mode=755 none "$1"
mkdir -p "$2"
mount --bind "$door" "$2"
umount "$door"
rmdir "$door"
exec sh -c "$3"
