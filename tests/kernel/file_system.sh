# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
set -e
device=$(losetup -f --show image)
trap 'umount mounted || true; losetup -d $device' EXIT
mount "$device" mounted
dd if=/dev/zero of=mounted/synced bs=4k count=1 conv=fsync
fsfreeze -f mounted
(sleep 0.2; exec fsfreeze -u mounted) &
touch mounted/frozen
wait
for _ in 1 2 3 4 5; do
	dd if=/dev/zero of=mounted/dirty bs=1M count=80
	umount mounted &
	while grep -q "^$device " /proc/mounts; do :; done
	mount "$device" mounted
	wait
done
