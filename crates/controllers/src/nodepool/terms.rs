//! Mullion's annotations of NodePools: prices and savings for which Karpenter has no fields.

use mullion_api::{karpenter::NodePool, labels};
use mullion_cloud::catalogue::Price;

/// An annotation of a pool has an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value: annotation {annotation} is {value:?}, but must be {wanted}")]
pub struct AnnotationError {
    annotation: &'static str,
    value: String,
    /// What the value should be.
    wanted: &'static str,
}

/// Returns the price that the annotation `mullion.dev/node-price` adds to each node of a pool; `None` without the
/// annotation.
///
/// # Errors
/// The annotation is not an amount in dollars.
pub fn node_price(pool: &NodePool) -> Result<Option<Price>, AnnotationError> {
    read(
        pool,
        labels::NODE_PRICE,
        "US dollars an hour such as 0.05",
        |text| {
            // A sign means a change in NodeOverlays; here it would be read as a price without one.
            let plain = text.starts_with(|first: char| first.is_ascii_digit());
            Price::parse(text).filter(|price| plain && *price <= MOST)
        },
    )
}

/// The maximum: a million dollars per hour. More is surely a mistake, and sums could overflow.
const MOST: Price = Price(1_000_000_000_000);

/// Returns the saving that the annotation `mullion.dev/min-saving` requires of a move, in thousandths of the price of the
/// removed nodes; `None` without the annotation.
///
/// # Errors
/// The annotation is not a share.
pub fn least_saving(pool: &NodePool) -> Result<Option<u32>, AnnotationError> {
    read(
        pool,
        labels::MIN_SAVING,
        "a share from 0% to 100% such as 5%",
        |text| thousandths(text, 100.0),
    )
}

/// Returns by how many thousandths preferences of pods may raise the price of a pool's nodes, from the annotation
/// `mullion.dev/preference-price`; `None` without the annotation.
///
/// # Errors
/// The annotation is not a percentage.
pub fn preference_price(pool: &NodePool) -> Result<Option<u32>, AnnotationError> {
    read(
        pool,
        labels::PREFERENCE_PRICE,
        "a percentage from 0% to 10000% such as 10%",
        |text| thousandths(text, 10_000.0),
    )
}

/// Parses a percentage of at most `most`, and returns it in thousandths.
fn thousandths(text: &str, most: f64) -> Option<u32> {
    let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    let is_known = (0.0..=most).contains(&percent);
    is_known.then(|| (percent * 10.0).round() as u32)
}

/// Returns the messages about invalid annotations of a pool.
pub(super) fn errors(pool: &NodePool) -> Vec<String> {
    let errors = [
        node_price(pool).err(),
        least_saving(pool).err(),
        preference_price(pool).err(),
    ];
    let errors = errors.into_iter().flatten();
    errors.map(|error| error.to_string()).collect()
}

fn read<T>(
    pool: &NodePool,
    annotation: &'static str,
    wanted: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, AnnotationError> {
    let annotations = pool.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|own| own.get(annotation)) else {
        return Ok(None);
    };
    let value = parse(text).ok_or_else(|| AnnotationError {
        annotation,
        value: text.clone(),
        wanted,
    });
    value.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(key: &str, value: &str) -> NodePool {
        let mut pool = NodePool::new("web", Default::default());
        let annotations = [(key.to_owned(), value.to_owned())];
        pool.metadata.annotations = Some(annotations.into());
        pool
    }

    #[test]
    fn prices_and_savings_are_read_or_refused() {
        let price = |text| node_price(&pool(labels::NODE_PRICE, text));
        assert_eq!(price("0.05"), Ok(Some(Price(50_000))));
        assert_eq!(price("3"), Ok(Some(Price(3_000_000))));
        assert_eq!(
            price("-1").map_err(|error| error.to_string()),
            Err("invalid value: annotation mullion.dev/node-price is \"-1\", but must be US dollars an hour such as 0.05".to_owned())
        );
        for wrong in [
            "",
            "+1",
            "1e9",
            "NaN",
            "0,05",
            "2000000",
            "99999999999999999999",
        ] {
            assert!(price(wrong).is_err(), "{wrong}");
        }
        let saving = |text| least_saving(&pool(labels::MIN_SAVING, text));
        assert_eq!(saving("5%"), Ok(Some(50)));
        assert_eq!(saving("0.5 %"), Ok(Some(5)));
        for wrong in ["5", "101%", "-1%", "NaN%"] {
            assert!(saving(wrong).is_err(), "{wrong}");
        }
        let preference = |text| preference_price(&pool(labels::PREFERENCE_PRICE, text));
        assert_eq!(preference("12.5%"), Ok(Some(125)));
        assert_eq!(preference("300%"), Ok(Some(3000)));
        assert_eq!(
            preference("10").map_err(|error| error.to_string()),
            Err("invalid value: annotation mullion.dev/preference-price is \"10\", but must be a percentage from 0% to 10000% such as 10%".to_owned())
        );
        assert_eq!(
            node_price(&NodePool::new("web", Default::default())),
            Ok(None)
        );
    }
}
