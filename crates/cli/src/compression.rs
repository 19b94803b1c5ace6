//! Ways to compress as they are written on a command line: `zstd`, `zstd:9`, `zlib`, `lzo`.

use std::str::FromStr;

use buttress::format::Compression;
use buttress::format::compression::CompressionMethod;

/// An algorithm, and how hard it tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method(pub CompressionMethod);

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let known = [Compression::Zlib, Compression::Lzo, Compression::Zstd];
        let compression = known.into_iter().find(|compression| compression.name() == name);
        let compression = compression.ok_or_else(|| format!("{name:?} is not zlib, lzo or zstd"))?;
        let Some(level) = level else {
            return Ok(Self(CompressionMethod::new(compression)));
        };
        let wanted: i32 = level.parse().map_err(|_| format!("{level:?} is not a level"))?;
        let method = CompressionMethod::with_level(compression, wanted);
        if i32::from(method.level()) != wanted && wanted != 0 {
            return Err(match compression {
                Compression::Zlib => "zlib has levels 1 to 9".to_owned(),
                Compression::Zstd => "zstd has levels -15 to 15".to_owned(),
                _ => format!("{name} has no levels"),
            });
        }
        Ok(Self(method))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
