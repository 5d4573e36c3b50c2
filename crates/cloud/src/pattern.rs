//! Matches the wildcard patterns of EC2's filters, which selectors use too.

/// Returns whether a text matches a pattern, in which `*` stands for any text and `?` for any character.
pub fn is_like(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<_>, Vec<_>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // The position of the last star, and the length of the text that it matches so far.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                // The last star matches one more character, and matching continues after that star.
                let Some((at, from)) = star else { return false };
                star = Some((at, from + 1));
                p = at + 1;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_stars_and_question_marks() {
        for (pattern, text) in [
            ("m5.*", "m5.large"),
            ("*", ""),
            ("a*b*c", "axxbxxc"),
            ("?b", "ab"),
        ] {
            assert!(is_like(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("m5.*", "m6.large"), ("a*b", "abc"), ("?", ""), ("a", "A")] {
            assert!(!is_like(pattern, text), "{pattern} {text}");
        }
        // There are too many ways to divide the text among the stars for backtracking.
        assert!(!is_like(&"*a".repeat(40), &"ab".repeat(60)));
    }
}
