# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
set -e
mkdir "$0"/tmp
mount -t tmpfs none "$0"/tmp
cp "$0"/*.class "$0"/tmp
chmod 1777 "$0"/tmp
mount --bind "$0"/tmp /tmp
exec "$@"
