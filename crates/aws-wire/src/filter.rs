//! Filters of describing calls: each names what it looks at and which values do; all must match.

use std::collections::BTreeMap;

use mullion_cloud::pattern::is_like;

use crate::{query::ParamScope, refusal::Refusal};

/// EC2 takes so many values of one filter.
const MOST_VALUES: usize = 200;

/// One filter.
#[derive(Clone, Debug)]
struct Filter {
    name: String,
    values: Vec<String>,
}

/// The filters of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filters(Vec<Filter>);

/// The values that an object has for a filter, or `None` if no filter has that name.
pub(crate) type FilterValues = Option<Vec<String>>;

impl Filters {
    /// Reads `Filter.N.Name` and `Filter.N.Value.M`.
    pub(crate) fn read(request: &ParamScope<'_>) -> Result<Self, Refusal> {
        let mut filters = Vec::new();
        for given in request.each("Filter") {
            let name = given.required("Name")?.to_owned();
            let values: Vec<_> = given.list("Value").into_iter().map(str::to_owned).collect();
            if values.len() > MOST_VALUES {
                return Err(Refusal::new(
                    "FilterLimitExceeded",
                    format!(
                        "The maximum number of filter values specified on a single call is {MOST_VALUES}"
                    ),
                ));
            }
            filters.push(Filter { name, values });
        }
        Ok(Self(filters))
    }

    /// Returns whether all filters match something with these tags; `find` looks up all but tags.
    ///
    /// # Errors
    /// A filter that there is not.
    pub(crate) fn match_all(
        &self,
        tags: &BTreeMap<String, String>,
        find: impl Fn(&str) -> FilterValues,
    ) -> Result<bool, Refusal> {
        for filter in &self.0 {
            let found = match (filter.name.as_str(), filter.name.strip_prefix("tag:")) {
                ("tag-key", _) => Some(tags.keys().cloned().collect()),
                (_, Some(key)) => Some(tags.get(key).cloned().into_iter().collect()),
                (name, None) => find(name),
            };
            let Some(found) = found else {
                return Err(Refusal::value(format!(
                    "The filter '{}' is invalid",
                    filter.name
                )));
            };
            let matches = |value: &String| found.iter().any(|own| is_like(value, own));
            if !filter.values.iter().any(matches) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the one value that something has.
pub(crate) fn one(value: impl ToString) -> FilterValues {
    Some(vec![value.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Params;

    #[test]
    fn all_filters_have_to_match_and_unknown_ones_are_refused() {
        let tags = BTreeMap::from([("team".to_owned(), "web".to_owned())]);
        let matches = |form: &str| {
            let params = Params::parse(form.as_bytes());
            let filters = Filters::read(&params.root()).unwrap();
            filters.match_all(&tags, |name| {
                (name == "state").then(|| vec!["up".to_owned()])
            })
        };
        assert_eq!(
            matches("Filter.1.Name=tag:team&Filter.1.Value.1=db&Filter.1.Value.2=w*"),
            Ok(true)
        );
        let both =
            "Filter.1.Name=tag-key&Filter.1.Value.1=team&Filter.2.Name=state&Filter.2.Value.1=down";
        assert_eq!(matches(both), Ok(false));
        let unknown = matches("Filter.1.Name=colour&Filter.1.Value.1=red").unwrap_err();
        assert_eq!(unknown.message, "The filter 'colour' is invalid");
    }
}
