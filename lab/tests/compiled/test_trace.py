"""Tracing addresses through LLVM IR, on small programs written for the purpose."""

from types import SimpleNamespace

import numpy as np
import pytest

from rownorm_lab.compiled import llir, operations, traffic
from rownorm_lab.compiled.trace import Launch, Unresolved, trace
from rownorm_lab.compiled.traffic import counted

LOAD = r'asm sideeffect "mov.u16 $0, $2;\0A\09@$3 ld.global.b16 { $0 }, [ $1 + 8 ];", "=c,l,c,b"'
STORE = 'asm sideeffect "@$2 st.global.b32 [ $1 + 0 ], { $0 };", "r,l,b"'
BUFFER = "ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1"
TID = "%t = tail call i32 @llvm.nvvm.read.ptx.sreg.tid.x(), !dbg !1"
PROGRAM = "%p = tail call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x(), !dbg !1"


def traced(body, arguments, *, programs=(0,), threads=4, warp_size=4):
    """(kind, width, addresses of the threads that take part) of every access of a kernel with this body."""
    text = f"define ptx_kernel void @k(ptr addrspace(1) %0, i32 %1) #0 {{\n{body}\n}}\n"
    found = []

    def note(_visit, access, address, mask):
        n = len(programs) * threads
        active = np.broadcast_to(np.asarray(mask) != 0, n)
        found.append((access.kind, access.width, np.broadcast_to(address, n)[active].tolist()))

    launch = Launch(np.array(programs), 8, threads, warp_size)
    trace(llir.parse(text), arguments, launch, note)
    return found


def test_a_masked_load_in_inline_ptx():
    body = f"""
  {TID}
  %ok = icmp slt i32 %t, %1
  %wide = zext nneg i32 %t to i64
  %a = getelementptr bfloat, ptr addrspace(1) %0, i64 %wide
  %v = tail call i16 {LOAD}(ptr addrspace(1) %a, i16 0, i1 %ok) #1
  ret void"""
    assert traced(body, [1000, 3]) == [("load", 2, [1008, 1010, 1012])]


def test_repeated_loads_are_merged_until_a_store():
    body = f"""
  {TID}
  %ok = icmp slt i32 %t, %1
  %wide = zext nneg i32 %t to i64
  %a = getelementptr bfloat, ptr addrspace(1) %0, i64 %wide
  %v = tail call i16 {LOAD}(ptr addrspace(1) %a, i16 0, i1 %ok) #1
  %w = tail call i16 {LOAD}(ptr addrspace(1) %a, i16 0, i1 true) #1
  tail call void {STORE}(i32 0, ptr addrspace(1) %a, i1 %ok) #1
  %x = tail call i16 {LOAD}(ptr addrspace(1) %a, i16 0, i1 %ok) #1
  ret void"""
    first = ("load", 2, [1008, 1010])
    rest = ("load", 2, [1012, 1014])  # the threads that have not loaded yet
    assert traced(body, [1000, 2]) == [first, rest, ("store", 4, [1000, 1002]), first]


def test_a_loop_with_a_trip_count_of_each_program():
    body = f"""
  {PROGRAM}
  br label %head

head:                                             ; preds = %head, %2
  %i = phi i32 [ 0, %2 ], [ %next, %head ]
  %at = mul i32 %i, 16
  %wide = sext i32 %at to i64
  %a = getelementptr i8, ptr addrspace(1) %0, i64 %wide
  %v = load <4 x i32>, ptr addrspace(1) %a, align 16
  %next = add i32 %i, 1
  %more = icmp sle i32 %next, %p
  br i1 %more, label %head, label %end

end:                                              ; preds = %head
  ret void"""
    found = traced(body, [0, 0], programs=(0, 2), threads=1, warp_size=1)
    assert sorted(address for _, _, addresses in found for address in addresses) == [0, 0, 16, 32]


def test_threads_that_branch_apart_meet_again():
    body = f"""
  {TID}
  %odd = trunc i32 %t to i1
  %wide = zext i32 %t to i64
  %a = getelementptr float, ptr addrspace(1) %0, i64 %wide
  br i1 %odd, label %then, label %end

then:                                             ; preds = %2
  store float 1.0, ptr addrspace(1) %a, align 4
  br label %end

end:                                              ; preds = %then, %2
  %b = phi ptr addrspace(1) [ %a, %then ], [ %0, %2 ]
  store float 2.0, ptr addrspace(1) %b, align 4
  ret void"""
    assert traced(body, [64, 0]) == [("store", 4, [68, 76]), ("store", 4, [64, 68, 64, 76])]


def test_extra_work_for_some_data_is_left_out():
    body = """
  %v = load float, ptr addrspace(1) %0, align 4
  %rare = fcmp ogt float %v, 1.0
  br i1 %rare, label %extra, label %end

extra:                                            ; preds = %2
  %w = load double, ptr addrspace(1) %0, align 8
  br label %end

end:                                              ; preds = %extra, %2
  store float 0.0, ptr addrspace(1) %0, align 4
  ret void"""
    assert [one[:2] for one in traced(body, [0, 0])] == [("load", 4), ("store", 4)]


def test_a_buffer_masks_by_offset():
    body = f"""
  {TID}
  %ok = icmp ne i32 %t, 2
  %off = shl i32 %t, 2
  %masked = select i1 %ok, i32 %off, i32 -2147483648
  %r = tail call {BUFFER}(ptr addrspace(1) %0, i16 0, i64 2147483646, i32 159744)
  %v = tail call i32 @llvm.amdgcn.raw.ptr.buffer.load.i32(ptr addrspace(8) %r, i32 %masked, i32 0, i32 0)
  ret void"""
    assert traced(body, [256, 0]) == [("load", 4, [256, 260, 268])]


def test_masks_that_the_compiler_made_a_vector_of():
    body = f"""
  {TID}
  %next = add i32 %t, 1
  %v0 = insertelement <2 x i32> poison, i32 %t, i64 0
  %v1 = insertelement <2 x i32> %v0, i32 %next, i64 1
  %n0 = insertelement <2 x i32> poison, i32 %1, i64 0
  %n1 = shufflevector <2 x i32> %n0, <2 x i32> poison, <2 x i32> zeroinitializer
  %more = add <2 x i32> %v1, splat (i32 1)
  %ok = icmp slt <2 x i32> %more, %n1
  %second = extractelement <2 x i1> %ok, i64 1
  tail call void {STORE}(i32 0, ptr addrspace(1) %0, i1 %second)
  ret void"""
    assert traced(body, [64, 4]) == [("store", 4, [64, 64])]  # t + 2 < 4 holds in two threads


def test_sizes_of_types():
    kinds = {"i8": 8, "bfloat": 16, "<8 x i16>": 128, "[2 x i8]": 16, "ptr addrspace(1)": 64}
    assert {kind: llir.bits_of(kind) for kind in kinds} == kinds
    assert llir.bits_of("%struct") == 0


def test_an_element_of_unknown_size_has_no_known_address():
    body = """
  %a = getelementptr %struct, ptr addrspace(1) %0, i32 %1
  store float 1.0, ptr addrspace(1) %a, align 4
  ret void"""
    with pytest.raises(Unresolved, match="no known address"):
        traced(body, [0, 1])


def test_an_unknown_address_is_an_error():
    body = """
  %i = load i64, ptr addrspace(1) %0, align 8
  %a = getelementptr i8, ptr addrspace(1) %0, i64 %i
  %v = load i8, ptr addrspace(1) %a, align 1
  ret void"""
    with pytest.raises(Unresolved, match="no known address"):
        traced(body, [0, 0])


def test_a_module_without_a_kernel_is_an_error():
    with pytest.raises(ValueError, match="no kernel"):
        llir.parse("; nothing")


@pytest.mark.parametrize(
    ("name", "a", "b", "expected"),
    [
        ("sdiv", -7, 2, -3),
        ("srem", -7, 2, -1),
        ("lshr", -1, 28, 15),
        ("shl", 1, 31, -(1 << 31)),
        ("umin", -1, 5, 5),
        ("add", 2**31 - 1, 1, -(2**31)),
    ],
)
def test_integers_are_those_of_llvm(name, a, b, expected):
    assert operations.binary(name, a, b, 32) == expected
    assert operations.binary(name, np.array([a, a]), b, 32).tolist() == [expected] * 2
    assert operations.binary(name, a, None, 32) is None


def test_unsigned_comparison():
    assert operations.compare("ult", -1, 1, 32) == 0
    assert operations.compare("slt", -1, 1, 32) == 1


LANES = np.arange(32)


@pytest.mark.parametrize(
    ("addresses", "width", "sectors", "size"),
    [
        (LANES * 16, 16, 16, 512),  # contiguous, 16 bytes of each thread
        (LANES * 2, 2, 2, 64),
        (LANES * 2 + 16, 2, 3, 64),  # misaligned by half a sector
        (LANES * 64, 2, 32, 64),  # a sector for each thread
        (LANES * 0, 4, 1, 4),  # one number for all threads
        (LANES % 16 * 2, 2, 1, 32),  # half of the threads load what the other half loads
        (LANES[::-1] * 4, 4, 4, 128),
    ],
)
def test_sectors_of_a_request(addresses, width, sectors, size):
    active = np.ones((1, 1, 32), bool)
    found = counted(addresses.reshape(1, 1, 32), active, width, 32)
    assert found[:, 0].tolist() == [1, sectors, size]


def test_masked_threads_do_not_count():
    active = (LANES < 8).reshape(1, 1, 32)
    assert counted((LANES * 16).reshape(1, 1, 32), active, 16, 32)[:, 0].tolist() == [1, 4, 128]
    assert counted((LANES * 16).reshape(1, 1, 32), active & False, 16, 32)[:, 0].tolist() == [0] * 3


def test_a_trace_that_misses_rows_is_an_error():
    flow = traffic.Flow("x", "load", 16, 1, 16, 512.0, 1024)
    kernel = SimpleNamespace(name="k", tensors={"x": 1024})
    with pytest.raises(Unresolved, match=r"50\.0% of x"):
        traffic._check([flow], kernel)
    traffic._check([flow, flow._replace(kind="copy")], kernel)
    with pytest.raises(Unresolved, match=r" 0\.0% of y"):
        traffic._check([flow, flow], SimpleNamespace(name="k", tensors={"x": 1024, "y": 1024}))


def test_sectors_of_a_copy_are_counted_for_eight_lanes():
    addresses = 16 + 16 * np.arange(32).reshape(1, 1, 32)  # begins in the middle of a sector
    active = np.ones_like(addresses, dtype=bool)
    whole = counted(addresses, active, 16, 32)
    split = counted(addresses, active, 16, 32, traffic.COPY_LANES)
    assert whole[:, 0].tolist() == [1, 17, 512]
    assert split[:, 0].tolist() == [1, 20, 512]
