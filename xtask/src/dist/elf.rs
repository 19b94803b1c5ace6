//! Checks by the ELF headers that a program is static and stripped.
//!
//! Source: elf(5). The check reads little-endian 64-bit programs only, for which releases are
//! built.

use anyhow::{Context, Result, ensure};

/// The type of program headers that name the dynamic loader.
const PT_INTERP: u32 = 3;
/// The type of sections with symbol tables, which stripping removes.
const SHT_SYMTAB: u32 = 2;

/// Returns the `N` bytes of the file at `at`.
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

/// Returns an error unless the program needs no loader and has no symbols.
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
    fn system_programs_and_other_bytes_are_refused() {
        // Every test program of the ordinary build is dynamic.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = require_static(&own).unwrap_err().to_string();
        assert!(error.contains("loader"), "{error}");
        assert!(require_static(b"#!/bin/sh").is_err());
        assert!(require_static(b"\x7fELF\x02\x01").is_err(), "cut off");
    }

    #[test]
    fn a_program_without_a_loader_is_static_until_it_has_symbols() {
        // The program has a header, one program header (PT_LOAD), and one section.
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
