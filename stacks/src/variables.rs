//! Variables of containers: a name and a value that stand in the file, put into words and before scripts.

use crate::shell::quoted;
use crate::yaml::Entry;

/// Names with their values.
pub(crate) type Variables = Vec<(String, String)>;

/// Takes a key of an item of `env`: a name begins a variable, a value is that of the last one.
pub(crate) fn take(variables: &mut Variables, key: &str, value: &str) {
    match key {
        "name" => variables.push((value.to_owned(), String::new())),
        "value" => {
            if let Some((_, known)) = variables.last_mut() {
                value.clone_into(known);
            }
        }
        _ => {}
    }
}

/// Takes a part of a variable.
pub(crate) fn take_entry(variables: &mut Variables, entry: &Entry) {
    take(variables, entry.key(), &entry.value);
}

/// A word with the values of `$(NAME)`, which Kubernetes puts in before anything starts.
pub(crate) fn filled(word: &str, variables: &Variables) -> String {
    let known = variables.iter().filter(|(_, value)| !value.is_empty());
    known.fold(word.to_owned(), |word, (name, value)| word.replace(&format!("$({name})"), value))
}

/// Assignments that a shell reads before a script. A variable without a value, as a secret is one, stays unknown.
pub(crate) fn assigned(variables: &Variables) -> String {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let known = variables.iter().filter(|(name, value)| !value.is_empty() && is_name(name));
    known.map(|(name, value)| format!("export {name}={}\n", quoted(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_put_in_and_what_has_none_stays() {
        let mut variables = Variables::new();
        for (key, value) in [("name", "A"), ("value", "it's"), ("name", "SECRET"), ("key", "x")] {
            take(&mut variables, key, value);
        }
        assert_eq!(filled("$(A) $(SECRET)", &variables), "it's $(SECRET)");
        assert_eq!(assigned(&variables), "export A='it'\\''s'\n");
    }
}
