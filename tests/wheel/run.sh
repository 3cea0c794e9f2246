#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh FOLDER [PYTHON]: builds the wheel of this checkout as a user does, in a virtual environment
# that has nothing but pip, which makes another one to build in. Then installs the wheel with its
# declared dependencies alone into a fresh environment and uses it from outside the checkout. FOLDER
# keeps the compiled objects for the next time, and FOLDER/package has the package alone, for tests
# with the packages of another environment. Exits with 77 where the package index is out of reach.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=${2:-python3}
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV

rm -rf "$folder/builder" "$folder/user" "$folder/wheels" "$folder/package"
"$python" -m venv "$folder/builder"
pip=("$folder/builder/bin/python" -m pip -q --disable-pip-version-check)
if ! "${pip[@]}" download --no-deps --dest "$folder/index" scikit-build-core \
  >"$folder/index.log" 2>&1; then
  tail -n 1 "$folder/index.log"
  exit 77
fi
"${pip[@]}" wheel --no-deps --wheel-dir "$folder/wheels" -Cbuild-dir="$folder/objects" "$source"

"$python" -m venv "$folder/user"
"$folder/user/bin/python" -m pip -q --disable-pip-version-check install \
  "$folder"/wheels/trimtab-*.whl
"$folder/user/bin/python" -m pip -q --disable-pip-version-check install --no-deps \
  --target "$folder/package" "$folder"/wheels/trimtab-*.whl

outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
cp "$source/tests/wheel/use.py" "$outside"
cd "$outside"
env -i PATH=/usr/bin:/bin "$folder/user/bin/python" use.py "$folder/user/bin/trimtab"
