//! The names of operations and of their tags. Source: k8s.io/apiserver: pkg/endpoints/openapi.

/// Returns a group as it appears in names, for example `core` or `rbacAuthorization`.
pub(super) fn of_group(group: &str) -> String {
    match group {
        "" => "core".to_owned(),
        group => identifier(group.trim_end_matches(".k8s.io")),
    }
}

/// Returns the tag of a group and version, for example `rbacAuthorization_v1`.
pub(super) fn tag(group: &str, version: &str) -> String {
    format!("{}_{}", of_group(group), identifier(version))
}

/// Returns the article before a kind, with spaces around it; only a space for a kind that looks like a plural.
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

/// Returns the letters and digits of a name in camel case: a letter after any other character becomes upper case.
pub(super) fn identifier(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    let mut raised = false;
    for (at, letter) in text.chars().enumerate() {
        if letter.is_alphabetic() || letter == '_' || (at != 0 && letter.is_numeric()) {
            if raised {
                name.extend(letter.to_uppercase())
            } else {
                name.push(letter)
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
