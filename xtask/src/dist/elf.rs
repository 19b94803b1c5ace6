//! Whether a program is static and stripped: what its ELF headers say.
//!
//! Source: elf(5). Little-endian 64-bit programs only: what releases are built for.

use anyhow::{Context, Result, ensure};

/// Program headers of this type name the dynamic loader.
const PT_INTERP: u32 = 3;
/// Sections of this type are symbol tables; stripping takes them out.
const SHT_SYMTAB: u32 = 2;

/// The numbers of `N` bytes at `at`.
fn bytes<const N: usize>(program: &[u8], at: u64) -> Result<[u8; N]> {
    let at = usize::try_from(at)?;
    let found = program.get(at..).and_then(|rest| rest.first_chunk());
    found
        .copied()
        .with_context(|| format!("the program ends before byte {at}"))
}

fn half(program: &[u8], at: u64) -> Result<u64> {
    Ok(u64::from(u16::from_le_bytes(bytes(program, at)?)))
}

fn word(program: &[u8], at: u64) -> Result<u32> {
    Ok(u32::from_le_bytes(bytes(program, at)?))
}

fn long(program: &[u8], at: u64) -> Result<u64> {
    Ok(u64::from_le_bytes(bytes(program, at)?))
}

/// An error unless the program needs no loader and has no symbols.
pub(super) fn require_static(program: &[u8]) -> Result<()> {
    ensure!(
        program.starts_with(b"\x7fELF\x02\x01"),
        "this is no 64-bit little-endian ELF program"
    );
    let (start, size, count) = (long(program, 32)?, half(program, 54)?, half(program, 56)?);
    for number in 0..count {
        let kind = word(program, start + number * size)?;
        ensure!(
            kind != PT_INTERP,
            "it is linked dynamically: it names a loader (program header {number})"
        );
    }
    let (start, size, count) = (long(program, 40)?, half(program, 58)?, half(program, 60)?);
    for number in 0..count {
        let kind = word(program, start + number * size + 4)?;
        ensure!(kind != SHT_SYMTAB, "it has a symbol table: it is not stripped");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_system_are_not_static_and_nonsense_is_no_program() {
        // Every test program of the ordinary build is dynamic.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = require_static(&own).unwrap_err().to_string();
        assert!(error.contains("loader"), "{error}");
        assert!(require_static(b"#!/bin/sh").is_err());
        assert!(require_static(b"\x7fELF\x02\x01").is_err(), "cut off");
    }

    #[test]
    fn a_program_without_a_loader_is_static_until_it_has_symbols() {
        // A header, one program header (PT_LOAD), one section.
        let mut program = vec![0; 64 + 56 + 64];
        program[..6].copy_from_slice(b"\x7fELF\x02\x01");
        program[32] = 64;
        program[40] = 64 + 56;
        (program[54], program[56], program[58], program[60]) = (56, 1, 64, 1);
        program[64] = 1;
        require_static(&program).unwrap();
        program[64 + 56 + 4] = SHT_SYMTAB as u8;
        assert!(
            require_static(&program)
                .unwrap_err()
                .to_string()
                .contains("stripped")
        );
        program[64] = PT_INTERP as u8;
        assert!(
            require_static(&program)
                .unwrap_err()
                .to_string()
                .contains("loader")
        );
    }
}
