//! The prices of functions and operators.

use super::{LIST, Part, Price, REGEX, Size, TRAVERSAL, scaled};
use crate::types::Type;

/// Returns the price of a function of Kubernetes' libraries or of CEL's extensions.
pub(super) fn of_function(
    function: &str,
    target: Option<&Part<'_>>,
    arguments: &[Part<'_>],
) -> Option<Price> {
    let first = arguments.first().map(Part::size);
    Some(match (function, target) {
        ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target)) => {
            // Lists and texts have functions of the same name; the target's type decides which one is priced.
            match &target.kind {
                Type::List(item) => {
                    let each = match **item {
                        Type::String | Type::Bytes => element(target).priced(TRAVERSAL),
                        _ => 0,
                    };
                    let cost = target.size().max.saturating_mul(each.saturating_add(1));
                    (cost, None)
                }
                _ => (target.size().priced(TRAVERSAL), None),
            }
        }
        ("url", None) => (first?.priced(TRAVERSAL), first),
        ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target)) => {
            (target.size().priced(TRAVERSAL), Some(target.size()))
        }
        ("replace", Some(target)) if arguments.len() >= 2 => {
            let size = replaced(target.size(), first?, arguments[1].size());
            (target.size().priced(2.0 * TRAVERSAL), Some(size))
        }
        ("split", Some(target)) => (
            target.size().priced(2.0 * TRAVERSAL),
            Some(Size::at_most(target.size().max)),
        ),
        ("join", Some(target)) => {
            let items = target.size();
            let gaps = Size {
                min: items.min.saturating_sub(1),
                max: items.max.saturating_sub(1),
            };
            let mut size = items.times(element(target));
            if let Some(separator) = first {
                size = size.plus(separator.times(gaps));
            }
            (size.priced(TRAVERSAL), Some(size))
        }
        ("find" | "findAll", Some(target)) => {
            let text = target.size().plus(Size::exactly(1)).priced(TRAVERSAL);
            let cost = text.saturating_mul(first?.priced(REGEX));
            (cost, Some(Size::at_most(target.size().max)))
        }
        (
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver",
            None,
        ) => (first?.priced(TRAVERSAL), None),
        // The longest regular expression of a named format has 128 characters.
        ("validate", Some(_)) => (scaled(first?.priced(TRAVERSAL), 128.0 * REGEX), None),
        ("ip.isCanonical", None) => (first?.priced(2.0 * TRAVERSAL), None),
        ("containsIP" | "containsCIDR", Some(_)) => {
            // Two addresses of at most 16 bytes are compared, after one network was truncated to the other's length.
            let compared = Size::exactly(32).priced(TRAVERSAL);
            let cut = match function {
                "containsCIDR" => Size::exactly(16).priced(TRAVERSAL) + 1,
                _ => 0,
            };
            let parsed = match arguments.first()?.kind {
                Type::String => first?.priced(TRAVERSAL),
                _ => 0,
            };
            (parsed.saturating_add(compared + cut), None)
        }
        _ => return None,
    })
}

/// Returns the price of a function that derives a list from another (cel-go: ext/lists.go).
pub(super) fn of_lists(
    function: &str,
    target: Option<&Part<'_>>,
    arguments: &[Part<'_>],
) -> Option<Price> {
    let made = |each: f64, size: Size| {
        let cost = size.priced(each).saturating_add(1 + LIST);
        Some((cost, Some(size)))
    };
    let compared = |list: &Part<'_>| {
        let item = match &list.kind {
            Type::List(item) => item,
            _ => &Type::Dyn,
        };
        let texts = matches!(item, Type::String | Type::Bytes | Type::Dyn | Type::Open);
        let each = if texts { 2.0 + TRAVERSAL } else { 2.0 };
        made(each, list.size().times(list.size()))
    };
    let exactly = |size: u64| Size {
        min: size,
        max: size,
    };
    match (function, target, arguments) {
        ("lists.range", None, [count]) => made(1.0, exactly(count.whole.unwrap_or(u64::MAX))),
        ("slice", Some(list), [from, to]) => {
            let end = to.whole.unwrap_or(list.size().max);
            // The subtraction wraps like cel-go's, so a start behind the end gives a huge size.
            let size = end.wrapping_sub(from.whole.unwrap_or(0));
            made(1.0, exactly(size))
        }
        ("reverse", Some(list), []) if matches!(list.kind, Type::List(_) | Type::Dyn) => {
            made(1.0, list.size())
        }
        ("flatten", Some(list), []) => made(1.0, list.size()),
        ("flatten", Some(list), [depth]) => {
            made(depth.whole.unwrap_or(u64::MAX) as f64, list.size())
        }
        ("distinct", Some(list), []) => made(2.0, list.size().times(list.size())),
        ("sort", Some(list), []) => compared(list),
        ("@sortByAssociatedKeys", Some(_), [keys]) => compared(keys),
        _ => None,
    }
}

/// Returns the price of the language's own functions and operators; those without a price cost one step.
pub(super) fn of_operator(
    function: &str,
    target: Option<&Part<'_>>,
    arguments: &[Part<'_>],
) -> Price {
    const STEP: Price = (1, None);
    let may_be = |part: &Part<'_>, wanted: fn(&Type) -> bool| {
        wanted(&part.kind) || matches!(part.kind, Type::Dyn | Type::Open)
    };
    let text = |kind: &Type| matches!(kind, Type::String | Type::Bytes);
    match (function, target, arguments) {
        ("_&&_" | "_||_", ..) => (0, None),
        ("startsWith" | "endsWith", Some(_), [part]) => (part.size().priced(TRAVERSAL), None),
        ("bytes", None, [text]) if may_be(text, |kind| *kind == Type::String) => {
            let size = text.size();
            // A character has four bytes at most.
            let most = size.max.saturating_mul(4);
            (size.priced(TRAVERSAL), Some(Size { max: most, ..size }))
        }
        ("string", None, [bytes]) if may_be(bytes, |kind| *kind == Type::Bytes) => {
            let size = bytes.size();
            // Four bytes may be one character.
            let least = size.min / 4;
            (size.priced(TRAVERSAL), Some(Size { min: least, ..size }))
        }
        ("strings.quote", None, [text]) => {
            // Each character may need an escape, and two quotes are added.
            let size = text.size().plus(text.size()).plus(Size::exactly(2));
            (text.size().priced(TRAVERSAL), Some(size))
        }
        ("format", Some(target), _) => (target.size().priced(TRAVERSAL), None),
        ("@in", None, [_, list]) if may_be(list, |kind| matches!(kind, Type::List(_))) => {
            (list.size().max, None)
        }
        ("matches", Some(target), [pattern]) => {
            // One more, or matching an empty text would be free, however dear the pattern is.
            let text = target.size().plus(Size::exactly(1)).priced(TRAVERSAL);
            (text.saturating_mul(pattern.size().priced(REGEX)), None)
        }
        ("contains", Some(target), [part]) => {
            let text = target.size().priced(TRAVERSAL);
            (text.saturating_mul(part.size().priced(TRAVERSAL)), None)
        }
        ("_+_", None, [left, right]) => {
            let size = left.size().plus(right.size());
            if may_be(left, text) && may_be(right, text) {
                (size.priced(TRAVERSAL), Some(size))
            } else if matches!(
                (&left.kind, &right.kind),
                (Type::List(_), _) | (_, Type::List(_))
            ) {
                (1, Some(size))
            } else {
                STEP
            }
        }
        ("_==_", None, [left, _]) if matches!(left.kind, Type::Opaque(_)) => STEP,
        ("_==_" | "_!=_", None, [left, right]) => (compared(left, right), None),
        ("_<_" | "_<=_" | "_>_" | "_>=_", None, [left, right])
            if may_be(left, text) && may_be(right, text) =>
        {
            let either_dyn = [left, right]
                .iter()
                .any(|part| matches!(part.kind, Type::Dyn | Type::Open));
            (compared(left, right).max(u64::from(either_dyn)), None)
        }
        _ => STEP,
    }
}

/// Returns the price of comparing two values up to the length of the shorter one.
fn compared(left: &Part<'_>, right: &Part<'_>) -> u64 {
    let shorter = left.size().max.min(right.size().max);
    scaled(shorter, TRAVERSAL)
}

/// Returns the size of a list's items.
fn element(list: &Part<'_>) -> Size {
    let items = list.place.and_then(|place| place.items.as_deref());
    items.map_or(Size::UNKNOWN, |items| Size::at_most(items.most))
}

/// Returns the size of a text after a replacement.
fn replaced(text: Size, old: Size, new: Size) -> Size {
    let quotient = |whole: u64, part: u64| (whole as f64 / part as f64).ceil() as u64;
    // An empty text to be replaced is found before each character and at the end.
    let (most, kept) = match old.min {
        0 => (text.max.saturating_add(1), text.max),
        _ if new.max <= old.min => (0, text.max),
        least => (quotient(text.max, least), 0),
    };
    let (least, kept_least) = match old.max {
        0 => (text.min.saturating_add(1), text.min),
        longest if longest <= new.min => (0, text.min),
        longest => (quotient(text.min, longest), 0),
    };
    Size {
        min: least.saturating_mul(new.min).saturating_add(kept_least),
        max: most.saturating_mul(new.max).saturating_add(kept),
    }
}
