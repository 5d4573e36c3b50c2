//! Divides results into pages: `MaxResults`, `NextToken`.
//!
//! Invariant: results are in the order of their keys, and a token contains the last key of a page. So an object that exists all the time is listed
//! exactly once, whatever objects are created and deleted between two pages.

use std::ops::RangeInclusive;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};

use crate::{query::ParamScope, refusal::Refusal, xml::Xml};

/// The maximum number of results on one page.
const MOST: usize = 1000;

/// The page that a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    most: usize,
    after: Option<String>,
    is_limited: bool,
}

impl Page {
    /// Reads the size of the page and the key after which it begins. `default` is the size if the request has no `MaxResults`.
    ///
    /// # Errors
    /// A number outside `allowed`, or a token that no page had.
    pub(crate) fn read(
        request: &ParamScope<'_>,
        allowed: RangeInclusive<i64>,
        default: usize,
    ) -> Result<Self, Refusal> {
        let most = request.number("MaxResults")?;
        if let Some(most) = most.filter(|most| !allowed.contains(most)) {
            return Err(Refusal::value(format!(
                "Value ( {most} ) for parameter maxResults is invalid. Expecting a value between {} and {}.",
                allowed.start(),
                allowed.end()
            )));
        }
        let token = request.text("NextToken");
        let after = token
            .map(|token| {
                let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok();
                let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                let after = text.and_then(|text| Some(text.strip_prefix("after ")?.to_owned()));
                after.ok_or_else(|| Refusal::value("Unable to parse pagination token"))
            })
            .transpose()?;
        let is_limited = most.is_some();
        let most = most.and_then(|most| usize::try_from(most).ok());
        Ok(Self {
            most: most.unwrap_or(default).min(MOST),
            after,
            is_limited,
        })
    }

    /// Refuses `MaxResults` in a request that names objects by id, as EC2 does.
    ///
    /// # Errors
    /// `InvalidParameterCombination`.
    pub(crate) fn not_with(&self, named: bool, what: &str) -> Result<(), Refusal> {
        if named && self.is_limited {
            Err(Refusal::new(
                "InvalidParameterCombination",
                format!("The parameter {what} cannot be used with the parameter maxResults"),
            ))
        } else {
            Ok(())
        }
    }

    /// Returns the requested page of all results, and the token of the next page.
    pub(crate) fn take<T>(
        &self,
        mut all: Vec<T>,
        key: impl Fn(&T) -> String,
    ) -> (Vec<T>, Option<String>) {
        all.sort_by_cached_key(&key);
        if let Some(after) = &self.after {
            all.retain(|item| key(item) > *after);
        }
        let is_more = all.len() > self.most;
        all.truncate(self.most);
        let last = all.last().filter(|_| is_more);
        let token = last.map(|item| BASE64_URL_SAFE_NO_PAD.encode(format!("after {}", key(item))));
        (all, token)
    }
}

/// Writes the token of the next page.
pub(crate) fn next(xml: &mut Xml, token: Option<String>) {
    xml.maybe("nextToken", token);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Params;

    fn read(form: &str) -> Result<Page, Refusal> {
        Page::read(&Params::parse(form.as_bytes()).root(), 5..=1000, 1000)
    }

    #[test]
    fn pages_follow_each_other_though_things_come_and_go() {
        let all = |range: std::ops::Range<u32>| range.map(|n| format!("{n:02}")).collect();
        let (first, token) = read("MaxResults=5")
            .unwrap()
            .take(all(0..12), String::clone);
        assert_eq!(first.len(), 5);
        let form = format!("MaxResults=5&NextToken={}", token.unwrap());
        let mut later: Vec<_> = all(3..12);
        later.remove(1);
        let (second, token) = read(&form).unwrap().take(later, String::clone);
        assert_eq!(second, ["05", "06", "07", "08", "09"]);
        let form = format!("NextToken={}", token.unwrap());
        let (last, token) = read(&form).unwrap().take(all(0..12), String::clone);
        assert_eq!((last.len(), token), (2, None));
    }

    #[test]
    fn limits_and_tokens_that_cannot_be_are_refused() {
        for form in [
            "MaxResults=4",
            "MaxResults=1001",
            "NextToken=x",
            "NextToken=!",
        ] {
            assert_eq!(
                read(form).unwrap_err().code,
                "InvalidParameterValue",
                "{form}"
            );
        }
    }
}
