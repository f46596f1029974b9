"""⑩ The machine code of calls without conversion, as LLVM IR: see `direct_call`.

    i32 autotune_direct(ptr capsules, ptr plan, ptr table)

It is a part of every entry object. It has no state and no address of this process: what it calls of
CPython is in the plan, and what one inference works in is in the table, so calls with tables of
their own may overlap.
"""

from __future__ import annotations

from autotune.network.artifact.table import API, DIRECT

HEAD, RECORD = 4 + len(API), 7
"""Words of a plan before its arrays, and of each array."""


def direct_ir() -> str:
    """A function of `(tuple of capsules, plan, table)`: 0 where the network has run.

    A plan is `entry, n_threads, n_arrays, n_inputs`, the addresses of `API`, then a record for each
    array: `slot, flags, kind, itemsize, rank, address of the shape, bytes`. A capsule has a
    `PyArrayInterface`: `i32 two, i32 rank, i8 kind, i32 itemsize, i32 flags, ptr shape,
    ptr strides, ptr data`. The address of the data goes to its slot of the table.
    """
    return f"""define i32 @{DIRECT}(ptr %capsules, ptr %plan, ptr %table) {{
start:
  {_field("entry", "ptr", "plan", 0)}
  {_field("n_threads", "i64", "plan", 8)}
  {_field("n", "i64", "plan", 16)}
  {_field("n_inputs", "i64", "plan", 24)}
  {_field("item", "ptr", "plan", 32)}
  {_field("pointer", "ptr", "plan", 40)}
  {_field("save", "ptr", "plan", 48)}
  {_field("restore", "ptr", "plan", 56)}
  {_field("clear", "ptr", "plan", 64)}
  %records = getelementptr i64, ptr %plan, i64 {HEAD}
  br label %array
array:
  %i = phi i64 [ 0, %start ], [ %i_next, %alone ]
  %capsule = call ptr %item(ptr %capsules, i64 %i)
  %no_item = icmp eq ptr %capsule, null
  br i1 %no_item, label %failed, label %open
open:
  %given = call ptr %pointer(ptr %capsule, ptr null)
  %no_capsule = icmp eq ptr %given, null
  br i1 %no_capsule, label %failed, label %compare
compare:
  %at = mul i64 %i, {RECORD}
  %record = getelementptr i64, ptr %records, i64 %at
  {_field("slot", "i64", "record", 0)}
  {_field("flags", "i64", "record", 8)}
  {_field("kind", "i64", "record", 16)}
  {_field("itemsize", "i64", "record", 24)}
  {_field("rank", "i64", "record", 32)}
  {_field("shape", "ptr", "record", 40)}
  {_field("n_bytes", "i64", "record", 48)}
  {_field("g_two", "i32", "given", 0)}
  {_field("g_rank32", "i32", "given", 4)}
  {_field("g_kind8", "i8", "given", 8)}
  {_field("g_itemsize32", "i32", "given", 12)}
  {_field("g_flags32", "i32", "given", 16)}
  {_field("g_shape", "ptr", "given", 24)}
  {_field("g_data", "i64", "given", 40)}
  %g_rank = sext i32 %g_rank32 to i64
  %g_kind = zext i8 %g_kind8 to i64
  %g_itemsize = sext i32 %g_itemsize32 to i64
  %g_flags = zext i32 %g_flags32 to i64
  %has = and i64 %g_flags, %flags
  %c0 = icmp eq i32 %g_two, 2
  %c1 = icmp eq i64 %g_rank, %rank
  %c2 = icmp eq i64 %g_kind, %kind
  %c3 = icmp eq i64 %g_itemsize, %itemsize
  %c4 = icmp eq i64 %has, %flags
  %c01 = and i1 %c0, %c1
  %c23 = and i1 %c2, %c3
  %c234 = and i1 %c23, %c4
  %is_like = and i1 %c01, %c234
  br i1 %is_like, label %extents, label %left
extents:
  %d = phi i64 [ 0, %compare ], [ %d_next, %extent ]
  %all_equal = icmp eq i64 %d, %rank
  br i1 %all_equal, label %take, label %extent
extent:
  %want_at = getelementptr i64, ptr %shape, i64 %d
  %have_at = getelementptr i64, ptr %g_shape, i64 %d
  %want = load i64, ptr %want_at
  %have = load i64, ptr %have_at
  %d_next = add i64 %d, 1
  %is_equal = icmp eq i64 %want, %have
  br i1 %is_equal, label %extents, label %left
take:
  %slot_at = getelementptr i64, ptr %table, i64 %slot
  store i64 %g_data, ptr %slot_at
  %end = add i64 %g_data, %n_bytes
  %is_input = icmp ult i64 %i, %n_inputs
  br i1 %is_input, label %alone, label %others
others:
  %k = phi i64 [ 0, %take ], [ %k_next, %other ]
  %no_more = icmp eq i64 %k, %i
  br i1 %no_more, label %alone, label %other
other:
  %k_at = mul i64 %k, {RECORD}
  %k_record = getelementptr i64, ptr %records, i64 %k_at
  {_field("k_bytes", "i64", "k_record", 48)}
  {_field("k_slot", "i64", "k_record", 0)}
  %k_at_slot = getelementptr i64, ptr %table, i64 %k_slot
  %k_data = load i64, ptr %k_at_slot
  %k_end = add i64 %k_data, %k_bytes
  %is_before = icmp ult i64 %g_data, %k_end
  %is_after = icmp ult i64 %k_data, %end
  %overlaps = and i1 %is_before, %is_after
  %k_next = add i64 %k, 1
  br i1 %overlaps, label %left, label %others
alone:
  %i_next = add i64 %i, 1
  %is_last = icmp eq i64 %i_next, %n
  br i1 %is_last, label %run, label %array
run:
  %state = call ptr %save()
  call void %entry(ptr %table, i64 %n_threads)
  call void %restore(ptr %state)
  ret i32 0
failed:
  call void %clear()
  ret i32 1
left:
  ret i32 1
}}"""


def _field(name: str, kind: str, base: str, offset: int) -> str:
    """Load a field that lies `offset` bytes after `base`."""
    return (
        f"%{name}_p = getelementptr i8, ptr %{base}, i64 {offset}\n"
        f"  %{name} = load {kind}, ptr %{name}_p"
    )
