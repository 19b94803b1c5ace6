//! Compression methods as command-line arguments: `zstd`, `zstd:9`, `zlib`, `lzo`.

use std::str::FromStr;

use buttress::CompressionMethod;

/// A compression algorithm, with an optional level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method(pub CompressionMethod);

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use buttress::Compression;

    #[test]
    fn algorithms_and_levels() {
        let method = |text: &str| {
            text.parse::<Method>()
                .map(|Method(method)| (method.compression(), method.level()))
        };
        assert_eq!(method("zstd"), Ok((Compression::Zstd, 3)));
        assert_eq!(method("zstd:9"), Ok((Compression::Zstd, 9)));
        assert_eq!(method("zstd:-5"), Ok((Compression::Zstd, -5)));
        assert_eq!(method("zlib:1"), Ok((Compression::Zlib, 1)));
        assert_eq!(method("lzo"), Ok((Compression::Lzo, 0)));
        for text in [
            "", "none", "gzip", "zstd:", "zstd:x", "zstd:16", "zlib:10", "lzo:1",
        ] {
            assert!(method(text).is_err(), "{text:?}");
        }
    }
}
