# SPDX-License-Identifier: Apache-2.0
"""Trimtab's experts in vLLM on CPUs: docs/engines/vllm-cpu.md."""
