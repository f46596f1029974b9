"""⑤ Denormal numbers count as zero while kernels run, as LLVM assembly.

One of them costs an Intel core a hundred cycles, and networks make many: the weights that a masked
softmax gives to what it hides are about e^-100. Every thread sets its own control register before
its first kernel and puts the former value back after the last.
"""

from __future__ import annotations

_FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
"""Bits of MXCSR: for results, for operands."""

DENORMALS_IR = f"""
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

; Returns what `restore_denormals` wants.
define internal i32 @flush_denormals() {{
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %old = load i32, ptr %at
  %new = or i32 %old, {_FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO}
  store i32 %new, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret i32 %old
}}

define internal void @restore_denormals(i32 %old) {{
  %at = alloca i32
  store i32 %old, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}}
"""
