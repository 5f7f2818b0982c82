//! RFC 8785: one text for each JSON value, so that a browser's parse and stringify change nothing that is signed.

use serde_json::{Number, Value};

/// JavaScript's `Number.MAX_SAFE_INTEGER`: above it a browser rounds.
const INTEGER_MAX: u64 = (1 << 53) - 1;

/// The canonical text. Numbers are read as doubles, as a browser does; keys are in the order of their UTF-16 units.
pub fn canonical(value: &Value) -> Vec<u8> {
    serde_json_canonicalizer::to_vec(value).expect("a Value has text for keys and finite numbers only")
}

/// The value that a canonical text stands for. What is used after a signature was checked comes from here, so that
/// two texts with one signature (`1` and `1.0`, or two numbers that round to one double) are also one value.
pub fn settled(canonical: &[u8]) -> Option<Value> {
    let mut value = serde_json::from_slice(canonical).ok()?;
    // The canonical text of a large double has no point, yet it is not an exact integer.
    each_rounded(&mut value, &|number| number.as_f64().map_or(Value::Null, Value::from));
    Some(value)
}

/// Turns whole numbers that a browser would round into text, so that no digit is lost on the way.
pub fn spell_out(value: &mut Value) {
    each_rounded(value, &|number| Value::String(number.to_string()));
}

fn each_rounded(value: &mut Value, into: &impl Fn(&Number) -> Value) {
    match value {
        Value::Number(number) if is_rounded(number) => *value = into(number),
        Value::Array(items) => items.iter_mut().for_each(|item| each_rounded(item, into)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_rounded(field, into)),
        _ => {}
    }
}

fn is_rounded(number: &Number) -> bool {
    let magnitude = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
    magnitude.is_some_and(|magnitude| magnitude > INTEGER_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn text(value: &Value) -> String {
        String::from_utf8(canonical(value)).unwrap()
    }

    /// RFC 8785, appendix B: IEEE 754 bits and their one text.
    #[test]
    fn numbers_are_written_as_the_standard_lists_them() {
        let cases: &[(u64, &str)] = &[
            (0x0000_0000_0000_0000, "0"),
            (0x8000_0000_0000_0000, "0"),
            (0x0000_0000_0000_0001, "5e-324"),
            (0x8000_0000_0000_0001, "-5e-324"),
            (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
            (0xffef_ffff_ffff_ffff, "-1.7976931348623157e+308"),
            (0x4340_0000_0000_0000, "9007199254740992"),
            (0xc340_0000_0000_0000, "-9007199254740992"),
            (0x4430_0000_0000_0000, "295147905179352830000"),
            (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
            (0x44b5_2d02_c7e1_4af6, "1e+23"),
            (0x44b5_2d02_c7e1_4af7, "1.0000000000000001e+23"),
            (0x444b_1ae4_d6e2_ef4e, "999999999999999700000"),
            (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
            (0x444b_1ae4_d6e2_ef50, "1e+21"),
            (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
            (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
            (0x41b3_de43_5555_5553, "333333333.3333332"),
            (0x41b3_de43_5555_5554, "333333333.33333325"),
            (0x41b3_de43_5555_5555, "333333333.3333333"),
            (0x41b3_de43_5555_5556, "333333333.3333334"),
            (0x41b3_de43_5555_5557, "333333333.33333343"),
            (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
            (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
        ];
        for (bits, wanted) in cases {
            assert_eq!(text(&json!(f64::from_bits(*bits))), *wanted, "{bits:016x}");
        }
    }

    /// RFC 8785, sections 3.2.2 and 3.2.3.
    #[test]
    fn strings_literals_and_the_order_of_keys_are_as_in_the_standard() {
        let sample: Value = serde_json::from_str(
            r#"{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
                "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}"#,
        )
        .unwrap();
        let wanted = r#"{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#;
        assert_eq!(text(&sample), wanted);
        let keys: Value = serde_json::from_str(
            r#"{"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
                "\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis"}"#,
        )
        .unwrap();
        let places = ["Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"];
        let found: Vec<_> = places.iter().map(|word| text(&keys).find(word).unwrap()).collect();
        assert!(found.is_sorted(), "{found:?}");
    }

    #[test]
    fn a_number_that_a_browser_would_round_is_spelt_out() {
        let mut value = json!({ "id": u64::MAX, "low": [i64::MIN], "fine": 9_007_199_254_740_991u64, "float": 1e300 });
        spell_out(&mut value);
        let wanted = json!({ "id": "18446744073709551615", "low": ["-9223372036854775808"],
            "fine": 9_007_199_254_740_991u64, "float": 1e300 });
        assert_eq!(value, wanted);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn every_double_is_read_back_to_the_last_bit(bits: u64) {
            let number = f64::from_bits(bits);
            prop_assume!(number.is_finite());
            let once = canonical(&json!(number));
            let back = settled(&once).unwrap();
            prop_assert_eq!(back.as_f64().unwrap(), number);
            prop_assert_eq!(canonical(&back), once);
        }
    }
}
