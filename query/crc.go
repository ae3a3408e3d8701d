package query

// combineCRC returns the CRC-32 of the concatenation of two texts, from the CRC-32 of each and
// the length of the second in bytes. So the checksum of a gzip member that is joined from
// compressed parts can be calculated without unpacking the parts. The method is zlib's
// crc32_combine: appending n bytes multiplies the first CRC by x^(8n) modulo the polynomial.
func combineCRC(first, second uint32, length uint32) uint32 {
	return multiplyPolynomials(powerOfX(length), first) ^ second
}

// reversedIEEE is the polynomial of CRC-32. The highest bit is the coefficient of the lowest
// power.
const reversedIEEE = 0xedb88320

// multiplyPolynomials returns a·b modulo the polynomial of CRC-32.
func multiplyPolynomials(a, b uint32) uint32 {
	product := uint32(0)
	for bit := uint32(1 << 31); bit != 0; bit >>= 1 {
		if a&bit != 0 {
			product ^= b
		}
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= reversedIEEE
		}
	}
	return product
}

// powerOfX returns x^(8·bytes) modulo the polynomial of CRC-32.
func powerOfX(bytes uint32) uint32 {
	power := uint32(1 << 31) // the polynomial x^0: the highest bit stands for the lowest power
	for square := uint32(1 << (31 - 8)); bytes != 0; bytes >>= 1 {
		if bytes&1 != 0 {
			power = multiplyPolynomials(square, power)
		}
		square = multiplyPolynomials(square, square)
	}
	return power
}
