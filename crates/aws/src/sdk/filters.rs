//! Filters of EC2's calls.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{Filter, Tag};
use mullion_cloud::TagSelector;

/// Returns a filter for some values.
pub(super) fn filter<T: Into<String>>(
    name: impl Into<String>,
    values: impl IntoIterator<Item = T>,
) -> Filter {
    let values = values.into_iter().map(Into::into).collect();
    Filter::builder()
        .name(name)
        .set_values(Some(values))
        .build()
}

/// Returns filters that require all of these tags; `*` matches any value.
pub(super) fn of_tags(tags: &BTreeMap<String, String>) -> Vec<Filter> {
    tags.iter()
        .map(|(key, value)| match value.as_str() {
            "*" => filter("tag-key", [key]),
            value => filter(format!("tag:{key}"), [value]),
        })
        .collect()
}

/// Returns the filters of the calls for alternative selectors, one call each. Selectors with an id share a call, and an empty selector
/// selects nothing.
pub(super) fn of_selectors(
    selectors: &[TagSelector],
    id_filter: &str,
    name_filter: &str,
) -> Vec<Vec<Filter>> {
    let by_id = selectors.iter().filter_map(|own| own.id.clone());
    let by_id: Vec<String> = by_id.collect();
    let others = selectors.iter().filter(|own| own.id.is_none());
    let mut all: Vec<Vec<Filter>> = others
        .filter(|own| !own.tags.is_empty() || own.name.is_some())
        .map(|own| {
            let mut filters = of_tags(&own.tags);
            filters.extend(own.name.iter().map(|name| filter(name_filter, [name])));
            filters
        })
        .collect();
    if !by_id.is_empty() {
        all.push(vec![filter(id_filter, by_id)]);
    }
    all
}

/// Converts tags to a map.
pub(super) fn tag_map(tags: &[Tag]) -> BTreeMap<String, String> {
    tags.iter()
        .filter_map(|tag| {
            Some((
                tag.key()?.to_owned(),
                tag.value().unwrap_or_default().to_owned(),
            ))
        })
        .collect()
}

/// Converts a map to tags.
pub(super) fn to_tags(tags: &BTreeMap<String, String>) -> Vec<Tag> {
    tags.iter()
        .map(|(key, value)| Tag::builder().key(key).value(value).build())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_become_as_many_calls_as_have_to_be_made() {
        let selector = |tags: &[(&str, &str)], id: Option<&str>, name: Option<&str>| TagSelector {
            tags: tags
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            id: id.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        let selectors = [
            selector(&[("team", "*"), ("tier", "web")], None, None),
            selector(&[], Some("sg-1"), None),
            selector(&[], None, Some("default")),
            selector(&[], Some("sg-2"), None),
            selector(&[], None, None),
        ];
        let calls = of_selectors(&selectors, "group-id", "group-name");
        let said: Vec<String> = calls
            .iter()
            .map(|filters| {
                let one = filters.iter().map(|own| {
                    format!(
                        "{}={}",
                        own.name().unwrap_or_default(),
                        own.values().join("|")
                    )
                });
                one.collect::<Vec<_>>().join(" & ")
            })
            .collect();
        assert_eq!(
            said,
            [
                "tag-key=team & tag:tier=web",
                "group-name=default",
                "group-id=sg-1|sg-2"
            ]
        );
    }
}
