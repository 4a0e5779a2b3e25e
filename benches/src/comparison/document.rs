//! The part of a document that a command writes, between two comments.

/// The text with `part` between the marks of that name.
pub fn replace(text: &str, name: &str, part: &str) -> Result<String, String> {
    let begin = format!("<!-- {name}: written by the command -->\n");
    let end = format!("<!-- end of {name} -->");
    let missing = || {
        format!("it has no place for this: a line {begin:?} and after it {end:?} have to be there")
    };
    let from = text.find(&begin).ok_or_else(missing)? + begin.len();
    let to = from + text[from..].find(&end).ok_or_else(missing)?;
    Ok(format!(
        "{}\n{}\n\n{}",
        &text[..from],
        part.trim(),
        &text[to..]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let page =
            "before\n<!-- a: written by the command -->\nold\n<!-- end of a -->\nafter a b\n";
        let once = replace(page, "a", "new\ntable\n").unwrap();
        assert_eq!(
            once,
            "before\n<!-- a: written by the command -->\n\nnew\ntable\n\n<!-- end of a -->\nafter a b\n"
        );
        assert_eq!(replace(&once, "a", "new\ntable").unwrap(), once);
    }

    #[test]
    fn a_page_without_the_marks_is_left_alone() {
        for page in [
            "",
            "<!-- a: written by the command -->\n",
            "<!-- end of a -->\n<!-- a: written by the command -->\n",
        ] {
            let told = replace(page, "a", "x").unwrap_err();
            assert!(told.contains("no place"), "{told}");
        }
    }
}
