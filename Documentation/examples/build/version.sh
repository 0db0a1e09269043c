#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# usage: version.sh [--ns]    Prints version.h: the time of the build, different for each build.
if [ "$1" = --ns ]; then
	echo "#define VERSION \"$(date +%s.%N)\""
else
	sleep 2		# a second is not enough on file systems with times of two seconds
	echo "#define VERSION \"$(date +%s)\""
fi
