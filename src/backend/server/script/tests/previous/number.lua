-- Whole numbers as text. Times in microseconds have 16 digits, more than `tostring` keeps; and "%.0f", which keeps them, costs as
-- much as a command. So does a number that is given to a command in place of its text.
local function digits(number)
  if number < 1000000 then
    return string.format("%d", number)
  end
  return string.format("%d%06d", math.floor(number / 1000000), number % 1000000)
end
