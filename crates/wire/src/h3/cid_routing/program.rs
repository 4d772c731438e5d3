//! The kernel's side of [`super::CidRouting`], a classic BPF program.
//!
//! ```text
//! short header, or long one of type Handshake:  product → part → its block
//! any other long header (the client's own id):  product ────────► the newest part's block
//!   with an id of 8 octets, on a port from which processes dial: as the first line
//! a part's block:                               first + (product's lower bits) mod threads
//! ```

use super::{CID_BYTES, CidRouting, ProcessPart, THREAD_BITS};

/// One instruction of a classic BPF program: code, jump if true, jump if false, operand (`struct
/// sock_filter`, Linux `Documentation/networking/filter.rst`).
pub type BpfInstruction = (u16, u8, u8, u32);

/// Instructions that a part's block consists of.
const BLOCK_INSTRUCTIONS: usize = 5;

/// Builds the program. Packets that match no other part fall through to the newest part's block,
/// which is the last.
pub(super) fn build_program(steering: &CidRouting) -> Vec<BpfInstruction> {
    use opcode::*;
    let (others, newest): (Vec<_>, Vec<_>) = steering
        .parts()
        .partition(|(number, _)| *number != steering.own_part);
    let product = [
        (MULTIPLY, 0, 0, steering.secret),
        (SHIFT_RIGHT, 0, 0, 16),
        (COPY_TO_X, 0, 0, 0),
    ];
    let n = others.len();
    let mut program = vec![
        (LOAD_BYTE, 0, 0, 0),
        // Else a short header, whose load is behind those of a long one.
        (
            ANY_BIT,
            0,
            if steering.is_dialed_from { 8 } else { 6 },
            0x80,
        ),
        (AND, 0, 0, 0x30),
    ];
    match steering.is_dialed_from {
        true => program.extend([
            (EQUAL, 4, 0, 0x20),             // a long header of type Handshake
            (LOAD_BYTE, 0, 0, 5),            // length of the id
            (EQUAL, 2, 0, CID_BYTES as u32), // an answer; else one with the client's own id
        ]),
        false => program.push((EQUAL, 2, 0, 0x20)),
    }
    program.extend([
        (LOAD_WORD, 0, 0, 6), // skips flags, version and length
        // Jumps over the product, the comparisons and all other parts' blocks.
        (JUMP, 0, 0, (8 + n + n * BLOCK_INSTRUCTIONS) as u32),
        (LOAD_WORD, 0, 0, 6),
        (JUMP, 0, 0, 1),
        (LOAD_WORD, 0, 0, 1),
    ]);
    program.extend(product);
    // X keeps the product for the block; A now holds the part.
    program.push((SHIFT_RIGHT, 0, 0, THREAD_BITS));
    program.extend(others.iter().enumerate().map(|(at, (number, _))| {
        (
            EQUAL,
            (n + at * (BLOCK_INSTRUCTIONS - 1)) as u8,
            0,
            *number as u32,
        )
    }));
    program.push((JUMP, 0, 0, (n * BLOCK_INSTRUCTIONS + product.len()) as u32));
    program.extend(others.iter().flat_map(|(_, part)| part_block(*part)));
    program.extend(product);
    program.extend(newest.iter().flat_map(|(_, part)| part_block(*part)));
    program
}

/// Block that picks a part's socket by the product's lower bits.
fn part_block(part: ProcessPart) -> [BpfInstruction; BLOCK_INSTRUCTIONS] {
    use opcode::*;
    let low = (1 << THREAD_BITS) - 1;
    [
        (COPY_FROM_X, 0, 0, 0),
        (AND, 0, 0, low),
        (MODULO, 0, 0, part.threads),
        (ADD, 0, 0, part.first),
        (RETURN_A, 0, 0, 0),
    ]
}

/// Opcodes from `linux/bpf_common.h`: class, size or operation, and location of the operand.
pub(super) mod opcode {
    pub(crate) const LOAD_BYTE: u16 = 0x30;
    pub(crate) const LOAD_WORD: u16 = 0x20;
    pub(crate) const ADD: u16 = 0x04;
    pub(crate) const MULTIPLY: u16 = 0x24;
    pub(crate) const AND: u16 = 0x54;
    pub(crate) const SHIFT_RIGHT: u16 = 0x74;
    pub(crate) const MODULO: u16 = 0x94;
    pub(crate) const JUMP: u16 = 0x05;
    pub(crate) const EQUAL: u16 = 0x15;
    pub(crate) const ANY_BIT: u16 = 0x45;
    pub(crate) const RETURN_A: u16 = 0x16;
    pub(crate) const COPY_TO_X: u16 = 0x07;
    pub(crate) const COPY_FROM_X: u16 = 0x87;
}
