//! SHA-256 of sectors: sixteen in parallel on processors with AVX-512, else one after another.
//!
//! The sixteen lanes need the feature `sha256-lanes`. Without this feature or AVX-512, sectors are
//! computed one after another.
//!
//! A digest is a chain of rounds. Each round of a SHA-256 digest depends on the previous round,
//! even with the processor's SHA instructions. The digest chains of different sectors are
//! independent. Each of sixteen sectors has a lane of the vectors, and each pass over the rounds
//! advances all sixteen ([`lanes`]). `sha2` computes the sectors that remain after groups of
//! sixteen, one after another.

use sha2::Digest as _;

/// Appends the digests of the consecutive sectors of `data` to `out`. The last sector may be
/// incomplete.
pub(super) fn compute_sectors(data: &[u8], sector_bytes: usize, out: &mut Vec<u8>) {
    #[cfg(all(target_arch = "x86_64", feature = "sha256-lanes"))]
    let data = lanes::compute_sectors(data, sector_bytes, out);
    for sector in data.chunks(sector_bytes) {
        out.extend_from_slice(&sha2::Sha256::digest(sector));
    }
}

/// Sixteen digests in parallel with AVX-512.
///
/// Source: FIPS 180-4: functions in section 4.1.2, constants in 4.2.2, start values in 5.3.3,
/// padding in 5.1.1, rounds in 6.2.
#[cfg(all(target_arch = "x86_64", feature = "sha256-lanes"))]
mod lanes {
    #![allow(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        reason = "indices are into arrays of fixed sizes and into sectors that are whole"
    )]

    use core::arch::x86_64::__m512i;
    use pulp::x86::V4;
    use pulp::{NullaryFnOnce, cast};

    const LANES: usize = 16;
    const BLOCK_BYTES: usize = 64;

    /// A word of each lane.
    type Words = [u32; LANES];

    const START: [u32; 8] = [
        0x6a09_e667,
        0xbb67_ae85,
        0x3c6e_f372,
        0xa54f_f53a,
        0x510e_527f,
        0x9b05_688c,
        0x1f83_d9ab,
        0x5be0_cd19,
    ];

    #[rustfmt::skip]
    const ROUND: [u32; 64] = [
        0x428a_2f98, 0x7137_4491, 0xb5c0_fbcf, 0xe9b5_dba5, 0x3956_c25b, 0x59f1_11f1, 0x923f_82a4, 0xab1c_5ed5,
        0xd807_aa98, 0x1283_5b01, 0x2431_85be, 0x550c_7dc3, 0x72be_5d74, 0x80de_b1fe, 0x9bdc_06a7, 0xc19b_f174,
        0xe49b_69c1, 0xefbe_4786, 0x0fc1_9dc6, 0x240c_a1cc, 0x2de9_2c6f, 0x4a74_84aa, 0x5cb0_a9dc, 0x76f9_88da,
        0x983e_5152, 0xa831_c66d, 0xb003_27c8, 0xbf59_7fc7, 0xc6e0_0bf3, 0xd5a7_9147, 0x06ca_6351, 0x1429_2967,
        0x27b7_0a85, 0x2e1b_2138, 0x4d2c_6dfc, 0x5338_0d13, 0x650a_7354, 0x766a_0abb, 0x81c2_c92e, 0x9272_2c85,
        0xa2bf_e8a1, 0xa81a_664b, 0xc24b_8b70, 0xc76c_51a3, 0xd192_e819, 0xd699_0624, 0xf40e_3585, 0x106a_a070,
        0x19a4_c116, 0x1e37_6c08, 0x2748_774c, 0x34b0_bcb5, 0x391c_0cb3, 0x4ed8_aa4a, 0x5b9c_ca4f, 0x682e_6ff3,
        0x748f_82ee, 0x78a5_636f, 0x84c8_7814, 0x8cc7_0208, 0x90be_fffa, 0xa450_6ceb, 0xbef9_a3f7, 0xc671_78f2,
    ];

    /// Computes the digests of whole sectors of `data` in groups of sixteen. Returns the bytes that
    /// do not fill a group.
    pub(super) fn compute_sectors<'a>(data: &'a [u8], sector_bytes: usize, out: &mut Vec<u8>) -> &'a [u8] {
        let whole = sector_bytes > 0 && sector_bytes.is_multiple_of(BLOCK_BYTES);
        let bits = sector_bytes
            .checked_mul(8)
            .and_then(|bits| u32::try_from(bits).ok());
        let (Some(sixteen), Some(bits)) = (sector_bytes.checked_mul(LANES), bits) else {
            return data;
        };
        if !whole || data.len() < sixteen {
            return data;
        }
        let Some(processor) = V4::try_new() else {
            return data;
        };
        let sixteens = data.chunks_exact(sixteen);
        let rest = sixteens.remainder();
        for sectors in sixteens {
            processor.vectorize(Sixteen {
                processor,
                sectors,
                sector_bytes,
                bits,
                out,
            });
        }
        rest
    }

    /// Sixteen sectors whose digests are computed in parallel.
    struct Sixteen<'a> {
        processor: V4,
        sectors: &'a [u8],
        sector_bytes: usize,
        /// The length of each sector in bits, as the padding states it.
        bits: u32,
        out: &'a mut Vec<u8>,
    }

    impl NullaryFnOnce for Sixteen<'_> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            let avx = self.processor.avx512f;
            let mut state = START.map(|word| avx._mm512_set1_epi32(word.cast_signed()));
            for block in (0..self.sector_bytes).step_by(BLOCK_BYTES) {
                let mut words = [[0; LANES]; 16];
                for (lane, sector) in self.sectors.chunks_exact(self.sector_bytes).enumerate() {
                    let (block, _) = sector[block..block + BLOCK_BYTES].as_chunks::<4>();
                    for (word, bytes) in words.iter_mut().zip(block) {
                        word[lane] = u32::from_be_bytes(*bytes);
                    }
                }
                rounds(self.processor, &mut state, words.map(cast::<Words, __m512i>));
            }
            let mut padding = [[0; LANES]; 16];
            padding[0] = [0x8000_0000; LANES];
            padding[15] = [self.bits; LANES];
            rounds(self.processor, &mut state, padding.map(cast::<Words, __m512i>));
            let state = state.map(cast::<__m512i, Words>);
            for lane in 0..LANES {
                for words in &state {
                    self.out.extend_from_slice(&words[lane].to_be_bytes());
                }
            }
        }
    }

    /// Truth tables for one vector instruction: `a ^ b ^ c`, `e ? f : g`, and the majority of `a`,
    /// `b` and `c`.
    const PARITY: i32 = 0x96;
    const CHOICE: i32 = 0xca;
    const MAJORITY: i32 = 0xe8;

    /// Computes the 64 rounds of one block in all lanes.
    #[inline(always)]
    fn rounds(processor: V4, state: &mut [__m512i; 8], mut words: [__m512i; 16]) {
        let avx = processor.avx512f;
        let add = |a, b| avx._mm512_add_epi32(a, b);
        let parity = |a, b, c| avx._mm512_ternarylogic_epi32::<PARITY>(a, b, c);
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
        for (group, constants) in ROUND.as_chunks::<16>().0.iter().enumerate() {
            for (round, constant) in constants.iter().enumerate() {
                if group > 0 {
                    let early = words[(round + 1) % 16];
                    let late = words[(round + 14) % 16];
                    let early = parity(
                        avx._mm512_ror_epi32::<7>(early),
                        avx._mm512_ror_epi32::<18>(early),
                        avx._mm512_srli_epi32::<3>(early),
                    );
                    let late = parity(
                        avx._mm512_ror_epi32::<17>(late),
                        avx._mm512_ror_epi32::<19>(late),
                        avx._mm512_srli_epi32::<10>(late),
                    );
                    words[round] = add(add(words[round], early), add(words[(round + 9) % 16], late));
                }
                let constant = avx._mm512_set1_epi32(constant.cast_signed());
                let upper = parity(
                    avx._mm512_ror_epi32::<6>(e),
                    avx._mm512_ror_epi32::<11>(e),
                    avx._mm512_ror_epi32::<25>(e),
                );
                let choice = avx._mm512_ternarylogic_epi32::<CHOICE>(e, f, g);
                let first = add(add(add(h, constant), words[round]), add(upper, choice));
                let lower = parity(
                    avx._mm512_ror_epi32::<2>(a),
                    avx._mm512_ror_epi32::<13>(a),
                    avx._mm512_ror_epi32::<22>(a),
                );
                let majority = avx._mm512_ternarylogic_epi32::<MAJORITY>(a, b, c);
                (h, g, f, e) = (g, f, e, add(d, first));
                (d, c, b, a) = (c, b, a, add(first, add(lower, majority)));
            }
        }
        for (word, more) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *word = add(*word, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the digest of each sector alone with `sha2`.
    fn one_by_one(data: &[u8], sector_bytes: usize) -> Vec<u8> {
        data.chunks(sector_bytes).flat_map(sha2::Sha256::digest).collect()
    }

    #[test]
    fn sectors_side_by_side_have_the_digests_of_each() {
        let noise: Vec<u8> = (0..70_u32 * 4096)
            .map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()[2])
            .collect();
        for sector_bytes in [64, 512, 1000, 4096, 16384] {
            for sectors in [0, 1, 15, 16, 17, 31, 32, 33, 70] {
                for short in [0, 1, 40] {
                    let length = (sectors * sector_bytes).min(noise.len()).saturating_sub(short);
                    let data = &noise[..length];
                    let mut computed = vec![7];
                    compute_sectors(data, sector_bytes, &mut computed);
                    let what = format!("{sectors} sectors of {sector_bytes} bytes, {short} less");
                    assert!(computed[1..] == one_by_one(data, sector_bytes), "{what}");
                }
            }
        }
    }

    #[test]
    #[cfg(all(target_arch = "x86_64", feature = "sha256-lanes"))]
    fn avx512_lanes_hash_sectors_in_groups_of_sixteen() {
        let data = vec![3; 35 * 512];
        let mut out = Vec::new();
        let rest = lanes::compute_sectors(&data, 512, &mut out);
        let taken = if pulp::x86::V4::try_new().is_some() { 32 } else { 0 };
        assert_eq!((rest.len(), out.len()), ((35 - taken) * 512, taken * 32));
    }
}
