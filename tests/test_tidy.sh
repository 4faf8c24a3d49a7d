#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_tidy.sh - every style check fires on a small bad input, and none on good ones.
exec python3 -B tools/tidy.py --self-test
