//! System calls that instances may not make.
//!
//! The list is data: `seccomp/ARCH.json`, each rule with its reason. It is a deny list: everything
//! else is allowed, so tenants' programs find an ordinary Linux. The list is a second line of
//! defence behind namespaces, uids and dropped capabilities. It keeps instances away from rarely
//! used kernel code.
//!
//! `forbidden` calls fail with EPERM. `absent` calls fail with ENOSYS, because programs then use an
//! older call. Calls of a foreign ABI (32 bit on a 64-bit machine) kill the process, and those of
//! x32 fail with ENOSYS. Their numbers differ, so the list would miss them.

pub mod handover;
pub mod listener;

use std::io;

use seccompiler::{BpfMap, BpfProgram, TargetArch, compile_from_json, sock_filter};

const X86_64: &str = include_str!("../../seccomp/x86_64.json");
const AARCH64: &str = include_str!("../../seccomp/aarch64.json");

/// Bit in the number of every x32 system call (`__X32_SYSCALL_BIT` in `asm/unistd.h`).
const X32_BIT: u32 = 0x4000_0000;

/// A list that does not fit this machine.
#[derive(Debug, thiserror::Error)]
pub enum SeccompFilterError {
    /// No list exists for this architecture.
    #[error("no seccomp list for the architecture {0}: use x86_64 or aarch64")]
    UnsupportedArchitecture(&'static str),
    /// The list is invalid.
    #[error("the seccomp list for this architecture is invalid: {0}")]
    InvalidList(#[from] seccompiler::Error),
}

/// The compiled filters.
#[derive(Debug, Clone)]
pub struct SeccompFilters(Vec<BpfProgram>);

impl SeccompFilters {
    /// Compiles the list of this machine's architecture.
    ///
    /// # Errors
    /// Fails without a list for it.
    pub fn compile() -> Result<Self, SeccompFilterError> {
        let name = std::env::consts::ARCH;
        match name {
            "x86_64" => Self::compile_for(X86_64, TargetArch::x86_64),
            "aarch64" => Self::compile_for(AARCH64, TargetArch::aarch64),
            _ => Err(SeccompFilterError::UnsupportedArchitecture(name)),
        }
    }

    fn compile_for(list: &str, architecture: TargetArch) -> Result<Self, SeccompFilterError> {
        let map: BpfMap = compile_from_json(list.as_bytes(), architecture)?;
        let mut programs: Vec<_> = map.into_values().collect();
        if matches!(architecture, TargetArch::x86_64) {
            // x32 calls carry the ABI of x86-64, so the list's check of the ABI lets them pass.
            programs.push(refuse_x32());
        }
        Ok(Self(programs))
    }

    /// Applies the filters permanently to the calling thread and everything that it executes or
    /// forks. Sets `no_new_privs`.
    ///
    /// # Errors
    /// Fails on a kernel without seccomp.
    pub fn apply_to_thread(&self) -> io::Result<()> {
        self.0
            .iter()
            .try_for_each(|program| seccompiler::apply_filter(program).map_err(io::Error::other))
    }

    /// Serialises the filters for another process on this machine.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for program in &self.0 {
            bytes.extend((program.len() as u32).to_ne_bytes());
            for op in program {
                bytes.extend(op.code.to_ne_bytes());
                bytes.extend([op.jt, op.jf]);
                bytes.extend(op.k.to_ne_bytes());
            }
        }
        bytes
    }

    /// Parses the bytes of [`SeccompFilters::to_bytes`].
    pub(crate) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut programs = Vec::new();
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_first_chunk()?;
            // 8 bytes: struct sock_filter of linux/filter.h, without padding.
            let (ops, rest) = rest.split_at_checked(8 * u32::from_ne_bytes(*length) as usize)?;
            programs.push(
                ops.chunks_exact(8)
                    .map(parse_instruction)
                    .collect::<Option<_>>()?,
            );
            bytes = rest;
        }
        Some(Self(programs))
    }
}

fn parse_instruction(bytes: &[u8]) -> Option<sock_filter> {
    let (code, rest) = bytes.split_first_chunk()?;
    let ([jt, jf], rest) = rest.split_first_chunk()?;
    let (k, _) = rest.split_first_chunk()?;
    Some(sock_filter {
        code: u16::from_ne_bytes(*code),
        jt: *jt,
        jf: *jf,
        k: u32::from_ne_bytes(*k),
    })
}

/// Builds a filter that the list's compiler cannot express. The system call number is at offset 0
/// of `struct seccomp_data`.
fn refuse_x32() -> BpfProgram {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_GE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        op(LOAD, 0, 0, 0),
        // Numbers from the bit on are x32 calls; all others go to the last instruction.
        op(JUMP_GE, 0, 1, X32_BIT),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_both_architectures_compile() {
        assert_eq!(
            SeccompFilters::compile_for(X86_64, TargetArch::x86_64)
                .unwrap()
                .0
                .len(),
            3
        );
        assert_eq!(
            SeccompFilters::compile_for(AARCH64, TargetArch::aarch64)
                .unwrap()
                .0
                .len(),
            2
        );
    }

    #[test]
    fn every_rule_has_a_reason() {
        for list in [X86_64, AARCH64] {
            let lists: serde_json::Value = serde_json::from_str(list).unwrap();
            for rule in lists
                .as_object()
                .unwrap()
                .values()
                .flat_map(|list| list["filter"].as_array().unwrap())
            {
                assert!(
                    rule["comment"]
                        .as_str()
                        .is_some_and(|reason| reason.len() > 10),
                    "{rule}"
                );
            }
        }
    }

    #[test]
    fn filters_survive_serialization() {
        let filters = SeccompFilters::compile_for(X86_64, TargetArch::x86_64).unwrap();
        assert_eq!(
            SeccompFilters::from_bytes(&filters.to_bytes()).unwrap().0,
            filters.0
        );
        assert!(SeccompFilters::from_bytes(&[1, 0, 0, 0, 9]).is_none());
    }
}
