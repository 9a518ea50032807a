"""Reading machine code: kinds of instructions, widths, source lines."""

from types import SimpleNamespace

import pytest

from rownorm_lab.compiled import isa

SASS = """
forward:
.L_x_1:
	//## File "/a/rownorm/kernels/memory.py", line 137
        /*0180*/                   LDG.E.EL.64 R20, desc[UR4][R4.64+0x800] ;
        /*0190*/              @!P0 LDG.E.128 R20, desc[UR4][R4.64+0x800] ;
        /*01a0*/                   LDGSTS.E.BYPASS.128 [R1], desc[UR4][R4.64] ;
        /*01b0*/                   LDGDEPBAR ;
        /*01c0*/                   LDG.E.U16 R3, desc[UR4][R4.64] ;
	//## File "/a/rownorm/kernels/memory.py", line 140
        /*01d0*/                   STG.E [R2.64], R3 ;
        /*01e0*/                   SHFL.BFLY PT, R3, R2, 0x10, 0x1f ;
        /*01f0*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0200*/                   STS [R1], R2 ;
        /*0210*/                   STL [R1], R2 ;
        /*0220*/                   FADD R1, R2, R3 ;
        /*0230*/                   BRA `(.L_x_1) ;
"""
PTX = """
	.file	1 "/a/rownorm/kernels/memory.py"
	.loc	1 52 10                         // memory.py:52:10
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	st.global.cs.v2.b32 [ %rd2 + 0 ], { %r1, %r2 };
	cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
	shfl.sync.bfly.b32 	%r5, %r6, 16, 31, -1;
	bar.sync 	0;
	ld.shared.b32 %r1, [ %r2 + 0 ];
	add.f32 	%f1, %f2, %f3;
"""
AMD = """
	.file	1 "/a/rownorm/kernels" "memory.py"
	.loc	1 52 10 is_stmt 1               ; memory.py:52:10
	buffer_load_dwordx4 v[0:3], v4, s[8:11], 0 offen
	global_load_ushort v1, v2, s[0:1]
	global_store_dwordx2 v0, v[2:3], s[0:1]
	v_add_f32_dpp v1, v1, v1 row_shr:8 row_mask:0xf bank_mask:0xf
	ds_bpermute_b32 v1, v2, v3
	ds_read_b32 v1, v2
	s_barrier
	v_mul_f32_e32 v0, v1, v2
.Lfunc_end0:
	v_ignored v0
"""


def test_sass():
    lines = list(isa._sass(SASS))
    assert isa.counts(lines) == {
        "barrier": 1, "load": 4, "reduction": 1, "shared": 1, "spill": 1, "store": 1
    }  # fmt: skip
    assert isa.widths(lines, "load") == {2: 1, 8: 1, 16: 2}
    assert isa.widths(lines, "store") == {4: 1}
    assert [line.number for line in lines if line.mark in ("load", "store")] == [137] * 4 + [140]
    assert isa.most_loads(lines) == 4


def test_ptx():
    lines = list(isa._assembly(PTX, "ptx"))
    assert isa.counts(lines) == {"barrier": 1, "load": 2, "reduction": 1, "shared": 1, "store": 1}
    assert isa.widths(lines, "load") == {16: 2}
    assert isa.widths(lines, "store") == {8: 1}
    assert {(line.file, line.number) for line in lines} == {("/a/rownorm/kernels/memory.py", 52)}


def test_amd():
    lines = list(isa._assembly(AMD, "amdgcn"))
    assert isa.counts(lines) == {"barrier": 1, "load": 2, "reduction": 2, "shared": 1, "store": 1}
    assert isa.widths(lines, "load") == {2: 1, 16: 1}
    assert isa.widths(lines, "store") == {8: 1}
    assert len(lines) == 8
    assert lines[0].file == "/a/rownorm/kernels/memory.py"


def test_code_of_the_other_vendor_is_refused():
    with pytest.raises(ValueError, match="the target has no sass; it has amdgcn"):
        isa.lines_of(SimpleNamespace(asm={"amdgcn": AMD}), "sass")
