//! Parses lists of completion indexes such as `0,3-5,7`: ascending, and each below the number of completions.

/// The error for a text that is not a list of indexes, with kube-apiserver's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum IndexError {
    /// An interval with more than one dash.
    #[error(
        "the fragment {0:?} violates the requirement that an index interval can have at most two parts separated by '-'"
    )]
    Parts(String),
    /// A part that is not a number.
    #[error("cannot convert string to integer for index: {0:?}")]
    NotANumber(String),
    /// An index that the Job does not have.
    #[error("too large index: {0:?}")]
    TooLarge(String),
    /// An index that is not larger than the one before it.
    #[error("non-increasing order, previous: {0}, current: {1}")]
    Order(i64, i64),
}

/// Returns the number of indexes in the list; indexes must be below `completions`.
pub(super) fn count(text: &str, completions: i64) -> Result<i64, IndexError> {
    if text.is_empty() {
        return Ok(0);
    }
    let (mut last, mut total) = (None, 0);
    for part in text.split(',') {
        let (first, end) = interval(part, completions)?;
        if let Some(last) = last.filter(|last| *last >= first) {
            return Err(IndexError::Order(last, first));
        }
        total += end - first + 1;
        last = Some(end);
    }
    Ok(total)
}

/// Returns the first index that is in both lists; malformed intervals are ignored.
pub(super) fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    let read = |text: &str| -> Vec<(i64, i64)> {
        text.split(',')
            .filter_map(|part| interval(part, completions).ok())
            .collect()
    };
    let (completed, failed) = (read(completed), read(failed));
    let (mut c, mut f) = (completed.iter().peekable(), failed.iter().peekable());
    while let (Some((c_first, c_end)), Some((f_first, f_end))) = (c.peek(), f.peek()) {
        if c_first <= f_end && f_first <= c_end {
            return Some(*c_first.max(f_first));
        }
        if c_first <= f_first {
            c.next();
        } else {
            f.next();
        }
    }
    None
}

fn interval(text: &str, completions: i64) -> Result<(i64, i64), IndexError> {
    let parts: Vec<&str> = text.split('-').collect();
    if parts.len() > 2 {
        return Err(IndexError::Parts(text.to_owned()));
    }
    let index = |part: &str| match part.parse::<i64>() {
        Err(_) => Err(IndexError::NotANumber(part.to_owned())),
        Ok(index) if index >= completions => Err(IndexError::TooLarge(part.to_owned())),
        Ok(index) => Ok(index),
    };
    let first = index(parts[0])?;
    let Some(end) = parts.get(1) else {
        return Ok((first, first));
    };
    let end = index(end)?;
    if first >= end {
        return Err(IndexError::Order(first, end));
    }
    Ok((first, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_counted_and_must_ascend() {
        assert_eq!(count("0,3-5,7", 8), Ok(5));
        assert_eq!(count("", 8), Ok(0));
        assert_eq!(count("3,2", 8), Err(IndexError::Order(3, 2)));
        assert_eq!(count("8", 8), Err(IndexError::TooLarge("8".into())));
        assert_eq!(count("1-2-3", 8), Err(IndexError::Parts("1-2-3".into())));
        assert_eq!(count("a", 8), Err(IndexError::NotANumber("a".into())));
    }

    #[test]
    fn an_index_is_completed_or_failed_and_not_both() {
        assert_eq!(overlap("0-2,5", "3,5", 8), Some(5));
        assert_eq!(overlap("0-2", "3", 8), None);
        assert_eq!(overlap("x,1-3", "2", 8), Some(2));
    }
}
