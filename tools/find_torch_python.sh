#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints a Python that has torch, transformers and pytest: TRIMTAB_PYTHON, else python3. Exits 1 when there is none.
python=${TRIMTAB_PYTHON:-python3}
"$python" -c 'import pytest, torch, transformers' 2>/dev/null || exit 1
echo "$python"
