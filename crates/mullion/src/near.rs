//! Finds the name that a misspelt one was probably meant to be.

use mullion_engine::remedy::distance_within;

/// Returns the name that is most like `wanted`, letters of both cases being the same; of equally near ones the first in alphabetical order.
/// Returns `None` if more than `most` letters of the nearest differ, or all letters of `wanted`.
pub(crate) fn nearest<'a>(
    wanted: &str,
    names: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Option<&'a str> {
    let lower = wanted.to_lowercase();
    let near = names
        .into_iter()
        .filter_map(|own| Some((distance_within(&lower, &own.to_lowercase(), most)?, own)));
    let (differ, nearest) = near.min()?;
    // A short name is as far from many others.
    (differ < wanted.chars().count()).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_meant_where_few_letters_differ() {
        let names = ["image", "containers", "Node"];
        let long = "image".repeat(100_000);
        for (wanted, most, expected) in [
            (long.as_str(), 2, None),
            ("imag", 1, Some("image")),
            ("IMGAE", 1, Some("image")),
            ("contianres", 1, None),
            ("contianres", 2, Some("containers")),
            ("Role", 1, None),
            ("no", 2, None),
        ] {
            assert_eq!(nearest(wanted, names, most), expected, "{wanted}");
        }
    }
}
