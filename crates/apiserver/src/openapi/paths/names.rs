//! How operations and their tags are called. Source: k8s.io/apiserver: pkg/endpoints/openapi.

/// A group in names: `core`, `rbacAuthorization`.
pub(super) fn of_group(group: &str) -> String {
    match group {
        "" => "core".to_owned(),
        group => identifier(group.trim_end_matches(".k8s.io")),
    }
}

/// What operations of a group's version are filed under: `rbacAuthorization_v1`.
pub(super) fn tag(group: &str, version: &str) -> String {
    format!("{}_{}", of_group(group), identifier(version))
}

/// What stands before one of a kind; nothing before what sounds like several.
pub(super) fn article(kind: &str) -> &'static str {
    if kind.ends_with('s') && !kind.ends_with("ss") {
        return " ";
    }
    match kind.chars().next().map(|first| first.to_ascii_lowercase()) {
        Some('a' | 'e' | 'i' | 'o' | 'u') => " an ",
        _ => " a ",
    }
}

pub(super) fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map(|first| first.to_ascii_uppercase())
        .into_iter()
        .chain(characters)
        .collect()
}

/// The letters and digits of a name; what follows anything else begins with a capital.
pub(super) fn identifier(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    let mut raised = false;
    for (at, letter) in text.chars().enumerate() {
        if letter.is_alphabetic() || letter == '_' || (at != 0 && letter.is_numeric()) {
            match raised {
                true => name.extend(letter.to_uppercase()),
                false => name.push(letter),
            }
            raised = false;
        } else {
            raised = true;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_become_identifiers() {
        assert_eq!(identifier("stable.example-1.com"), "stableExample1Com");
        assert_eq!(identifier("1x"), "X");
        assert_eq!(of_group("rbac.authorization.k8s.io"), "rbacAuthorization");
        assert_eq!(tag("", "v1"), "core_v1");
    }

    #[test]
    fn kinds_have_their_articles() {
        assert_eq!(
            [
                article("Foo"),
                article("Api"),
                article("Things"),
                article("Mass")
            ],
            [" a ", " an ", " ", " a "]
        );
    }
}
