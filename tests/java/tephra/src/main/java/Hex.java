/** Bytes as hex digits. */
final class Hex {
  private Hex() {}

  static String of(byte[] bytes) {
    StringBuilder digits = new StringBuilder();
    for (byte each : bytes) {
      digits.append(String.format("%02x", each));
    }
    return digits.toString();
  }

  static byte[] bytes(String digits) {
    byte[] bytes = new byte[digits.length() / 2];
    for (int i = 0; i < bytes.length; i++) {
      bytes[i] = (byte) Integer.parseInt(digits.substring(2 * i, 2 * i + 2), 16);
    }
    return bytes;
  }
}
