//! The compression heuristic: a prediction from a sample whether content compresses. The mount
//! option `compress` asks it before it compresses a range; `compress-force` does not.
//!
//! The sample is 16 bytes of every 256. The heuristic accepts a sample whose halves are equal, with
//! few different byte values, or with few values that make up most of it. The heuristic rejects a
//! sample in which nearly all values are equally frequent. For other samples, the entropy decides.
//! All tests and limits are the kernel's, so that both compress the same files.
//!
//! Source: the kernel's description of its compression heuristic (btrfs(5), section "Compression",
//! "Incompressible data").

/// Bytes in each sample.
const SAMPLE_BYTES: usize = 16;
/// The bytes from the beginning of one sample to the beginning of the next.
const INTERVAL_BYTES: usize = 256;
/// The maximum number of bytes that the heuristic samples.
const RANGE_BYTES_MAX: usize = 128 * 1024;
/// The number of different byte values below which content compresses well.
const FEW_BYTE_VALUES: usize = 64;
/// The size of the core set up to which content compresses well. The core set is the most frequent
/// byte values that together make up nine tenths of the sample.
const CORE_SET_LOW: usize = 64;
/// The size of the core set from which content does not compress well.
const CORE_SET_HIGH: usize = 200;
/// The entropy up to which content compresses well, in percent of eight bits for each byte.
const ENTROPY_HIGH_PERCENT: u64 = 80;

/// Returns true if it is worth trying to compress `content`. Samples at most 128 KiB of `content`.
#[must_use]
pub fn looks_compressible(content: &[u8]) -> bool {
    let content = content.get(..RANGE_BYTES_MAX).unwrap_or(content);
    let mut sample = Vec::with_capacity(RANGE_BYTES_MAX / INTERVAL_BYTES * SAMPLE_BYTES);
    for part in content.chunks(INTERVAL_BYTES) {
        // The sampling ignores a last part that is shorter than a sample.
        sample.extend_from_slice(part.first_chunk::<SAMPLE_BYTES>().map_or(&[], |bytes| bytes));
    }
    let (first, second) = sample.split_at(sample.len() / 2);
    if first == second {
        return true;
    }
    let mut counts = [0_u32; 256];
    for byte in &sample {
        if let Some(count) = counts.get_mut(usize::from(*byte)) {
            *count = count.saturating_add(1);
        }
    }
    if counts.iter().filter(|count| **count != 0).count() < FEW_BYTE_VALUES {
        return true;
    }
    match core_set(counts, sample.len()) {
        ..=CORE_SET_LOW => true,
        CORE_SET_HIGH.. => false,
        _ => entropy_percent(&counts, sample.len()) < ENTROPY_HIGH_PERCENT,
    }
}

/// Returns the number of most frequent byte values that make up nine tenths of the sample.
fn core_set(mut counts: [u32; 256], sample_bytes: usize) -> usize {
    counts.sort_unstable_by(|one, other| other.cmp(one));
    let wanted = u64::try_from(sample_bytes).unwrap_or(u64::MAX).saturating_mul(90) / 100;
    let mut covered = 0_u64;
    for (index, count) in counts.iter().enumerate() {
        covered = covered.saturating_add(u64::from(*count));
        if index >= CORE_SET_LOW && covered > wanted || *count == 0 {
            return index;
        }
    }
    counts.len()
}

/// Returns Shannon's entropy of the counts, computed in integers. Logarithms are of fourth powers,
/// so the unit is a quarter of a bit.
fn entropy_percent(counts: &[u32; 256], sample_bytes: usize) -> u64 {
    let quarters = |number: u64| u64::from(number.saturating_pow(4).checked_ilog2().unwrap_or(0));
    let total = u64::try_from(sample_bytes).unwrap_or(u64::MAX);
    let of_total = quarters(total);
    let sum = counts.iter().fold(0_u64, |sum, count| {
        let count = u64::from(*count);
        sum.saturating_add(count.saturating_mul(of_total.saturating_sub(quarters(count))))
    });
    let bits_max = 8 * 4;
    let entropy = sum.checked_div(total).unwrap_or(0);
    entropy.saturating_mul(100) / bits_max
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize, values: u64) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252_u64;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            u8::try_from((state >> 20) % values).unwrap()
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    #[test]
    fn text_and_runs_yes_and_noise_no() {
        let text: Vec<u8> = b"the quick brown fox jumps over the lazy dog ".repeat(3000);
        assert!(looks_compressible(&text));
        assert!(looks_compressible(&vec![0; 131_072]));
        assert!(looks_compressible(&noise(131_072, 60)), "few values");
        assert!(!looks_compressible(&noise(131_072, 256)));
        assert!(
            !looks_compressible(&noise(131_072, 224)),
            "all values as frequent"
        );
        assert!(looks_compressible(b""));
    }

    #[test]
    fn equal_halves_say_yes_whatever_is_in_them() {
        let half = noise(65_536, 256);
        assert!(looks_compressible(&[half.clone(), half].concat()));
    }

    #[test]
    fn entropy_is_between_nothing_and_all() {
        let mut one = [0; 256];
        one[7] = 100;
        assert_eq!(entropy_percent(&one, 100), 0);
        assert_eq!(entropy_percent(&[16; 256], 4096), 100);
        assert_eq!(entropy_percent(&[0; 256], 0), 0);
    }
}
