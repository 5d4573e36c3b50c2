//! Evaluates the filters of Describe calls. As in EC2, an object must match every filter, and matches a filter if it has one of its values.

use std::collections::BTreeMap;

use mullion_cloud::pattern::is_like;

use crate::{query::ParamScope, refusal::Refusal};

/// The maximum number of values of one filter in EC2.
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

    /// Returns whether all filters match an object with these tags. `find` returns the object's values for the other filters.
    ///
    /// # Errors
    /// A filter has an unknown name.
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

/// Returns the value of an object that has exactly one for a filter.
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
