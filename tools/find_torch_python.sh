#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints a Python that has torch, transformers and pytest: TRIMTAB_PYTHON, else python3. Where there
# is none, says on standard error how to get one, and exits 1.
python=${TRIMTAB_PYTHON:-python3}
if ! "$python" -c 'import pytest, torch, transformers' 2>/dev/null; then
  echo "$python has no torch, transformers and pytest; a virtual environment with" \
    "tests/live/requirements.txt has them: TRIMTAB_PYTHON=VENV/bin/python ./test.sh" >&2
  exit 1
fi
echo "$python"
