// SPDX-License-Identifier: Apache-2.0
#include "trimtab/report.h"

#include <gtest/gtest.h>
